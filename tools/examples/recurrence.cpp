// A language model without attention: tokens are mixed by a gated linear recurrence, as in minGRU
// (Feng et al. 2024, arXiv:2410.01201), h_t = a_t h_{t-1} + (1 - a_t) v_t with a_t = sigmoid(W
// x_t). The program plans a run, trains the model with two ranks, saves it, resumes it with one
// rank and the same bits, and generates text token by token from the state h.
//   recurrence [FILE]    without a file: this source
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "zerograd/zerograd.h"

using namespace zg;

constexpr int64_t width = 64, depth = 2, tokens = 32;

struct Block : nn::Module {
  using Module::Module;
  nn::Norm norm{this, "norm", {.width = width, .kind = nn::NormKind::rms}};
  nn::Linear decay{this, "decay", {.in = width, .out = width}};
  nn::Linear input{this, "input", {.in = width, .out = width}};
  nn::Linear gate{this, "gate", {.in = width, .out = width}};
  nn::Linear out{this, "out", {.in = width, .out = width}};
  nn::Norm mlp_norm{this, "mlp_norm", {.width = width, .kind = nn::NormKind::rms}};
  nn::Mlp mlp{this, "mlp", {.width = width}};

  // x: [B, T, width]. state: [B, 1, width], h before the first token; on return h after the last
  // one.
  Var operator()(Var x, Var& state) const {
    const Var normed = norm(x);
    const Var a = sigmoid(decay(normed));
    const Var v = (1.0 - a) * input(normed);
    const std::vector<int64_t> single(static_cast<size_t>(x.shape()[1]), 1);
    const std::vector<Var> a_t = split(a, single, 1), v_t = split(v, single, 1);
    std::vector<Var> states;
    for (size_t t = 0; t < single.size(); ++t) {
      state = state ? a_t[t] * state + v_t[t] : v_t[t];
      states.push_back(state);
    }
    const Var gated = concat(states, 1) * silu(gate(normed));
    x += out(gated);
    return x + mlp(mlp_norm(x));
  }
};

struct Model : nn::Module {
  nn::Embedding embedding;
  nn::List<Block> blocks;
  nn::Norm norm;
  nn::Linear head;

  explicit Model(int64_t vocabulary)
      : embedding(this, "embedding", {.tokens = vocabulary, .width = width}),
        blocks(this, "block", depth),
        norm(this, "norm", {.width = width, .kind = nn::NormKind::rms}),
        head(this, "head", {.in = width, .out = vocabulary, .bias = false, .hidden = false}) {}

  // The logits [B, T, vocabulary]. `states` has the state of each block, and is empty before a
  // text.
  Var logits(const Var& ids, std::vector<Var>& states) const {
    states.resize(blocks.size());
    Var x = embedding(ids);
    for (size_t i = 0; i < blocks.size(); ++i) x = blocks[i](x, states[i]);
    return head(norm(x));
  }
};

// The work of one rank: continues from the checkpoints in `folder` if there are some, trains up to
// step `steps`, and writes a text. Returns the hash of all parameters.
std::string train(Communicator& ranks, const Device& device, const models::Dataset& data,
                  const std::string& folder, int64_t steps) {
  const Model model(data.vocabulary());
  const bool prints = ranks.rank() == 0 && device.type() != Device::Type::meta;
  zero::Engine engine(model.store(), ranks, device, {.stage = 3, .param_persistence_threshold = 0});
  zero::Trainer trainer(
      engine,
      {.micro_batch = 8,
       .accumulation = 2 / ranks.size(),  // 16 samples a step, on one rank or on two
       .steps = steps,
       .schedule = {.rate = 3e-3},
       .checkpoints = {{.path = folder}}},
      {.batch = [&](const zero::MicroBatch& batch) -> std::vector<Tensor> {
         const models::Batch samples =
             data.batch(models::Split::train, batch.first_sample, batch.samples, device);
         return {samples.ids, samples.targets};
       },
       .forward =
           [&](Tape& tape, const zero::MicroBatch& batch) {
             std::vector<Var> states;
             const Var logits = model.logits(tape.constant(batch.tensors[0]), states);
             return cross_entropy(logits, batch.tensors[1]);
           }},
      {.after_step = [&](const zero::TrainedStep& step) {
        if (prints && (step.step + 1) % 10 == 0)
          std::printf("step %d loss %.4f\n", static_cast<int>(step.step) + 1, step.loss);
      }});
  trainer.resume(folder);
  trainer.run();
  const std::string hash = engine.parameter_hash();  // runs collectives, so a plan calls it, too

  std::vector<Var> states;
  std::vector<int32_t> ids = data.encode("const "), written = ids;
  for (int i = 0; i < 40; ++i) {
    Tape tape = engine.inference_tape();
    const auto count = std::ssize(ids);
    const Var next = tape.constant(Tensor::from(ids, {1, count}, device));
    const Var logits = model.logits(next, states);
    ids = {static_cast<int32_t>(argmax(slice(logits, 1, count - 1, count)).value().item())};
    written.push_back(ids[0]);
  }
  if (prints) std::printf("%s\nparameter hash %s\n", data.decode(written).c_str(), hash.c_str());
  return hash;
}

int main(int count, char** arguments) {
  const auto data = models::text_dataset(count > 1 ? arguments[1] : __FILE__,
                                         {.block_size = tokens, .validation_fraction = 0.0});
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "zerograd_recurrence";
  std::filesystem::remove_all(folder);
  // Plans a run and runs it; an error names the first allocation or collective that differs.
  const auto planned_run = [&](int ranks, const char* name, int64_t steps) {
    std::string hash;
    const auto program = [&](Communicator& group, const Device& device) {
      const std::string found = train(group, device, *data, folder / name, steps);
      if (group.rank() == 0) hash = found;
    };
    const Plan plan = plan_ranks(ranks, program, {.device = {.threads = 1}});
    run_ranks(ranks, program, {.local = {.device = {.threads = 1}}, .expect = &plan});
    return hash;
  };
  planned_run(2, "stopped", 20);
  const std::string resumed = planned_run(1, "stopped", 40);
  const std::string whole = planned_run(2, "whole", 40);
  std::filesystem::remove_all(folder);
  std::printf("resumed by one rank: %s hash\n", resumed == whole ? "the same" : "another");
  return resumed == whole ? 0 : 1;
}

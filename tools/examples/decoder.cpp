// A Llama of one's own, made of the library's layers: planned without memory, trained on the bytes
// of a file by two ranks at ZeRO stage 3, then it continues a prompt.
//   decoder [FILE]    without a file: this source
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "zerograd/zerograd.h"

using namespace zg;

constexpr int64_t vocabulary = 256, width = 64, depth = 2, tokens = 64;

// Members are the block's parameters: "block.0.attention.q_proj.weight".
struct Block : nn::Module {
  using Module::Module;
  nn::Norm attention_norm{this, "attention_norm", {.width = width, .kind = nn::NormKind::rms}};
  nn::Attention attention{
      this, "attention", {.width = width, .heads = 4, .kv_heads = 2, .rope = RopeOptions()}};
  nn::Norm mlp_norm{this, "mlp_norm", {.width = width, .kind = nn::NormKind::rms}};
  nn::Mlp mlp{this, "mlp", {.width = width, .hidden = 160, .kind = nn::MlpKind::gated_silu}};

  Var operator()(Var x) const {
    x += attention(attention_norm(x));
    return x + mlp(mlp_norm(x));
  }
};

// A block of a List is a unit: at stage 3 its call gathers its parameters. So is a layer that is in
// no unit.
struct Decoder : nn::Module {
  nn::Embedding embedding{this, "embedding", {.tokens = vocabulary, .width = width}};
  nn::List<Block> blocks{this, "block", depth};
  nn::Norm norm{this, "norm", {.width = width, .kind = nn::NormKind::rms}};

  Var hidden(const Var& ids) const {
    Var x = embedding(ids);
    for (const auto& block : blocks) x = block(x);
    return x;
  }

  Var loss(const Var& ids, const Tensor& targets) const {
    return embedding.loss(norm(hidden(ids)), targets);  // the embedding is the head, too
  }

  // The most likely token after those of the cache and `ids`.
  int32_t next(const Tape& tape, nn::KeyValueCache& cache, const std::vector<int32_t>& ids) const {
    const auto count = std::ssize(ids);
    const Tape::With pass(tape, nn::Pass{.cache = &cache});
    const Var x = hidden(tape.constant(Tensor::from(ids, {1, count}, tape.device())));
    cache.advance(count);
    const Var last = norm(slice(x, 1, count - 1, count));
    return static_cast<int32_t>(argmax(embedding.logits(last)).value().item());
  }
};

// Sample i of the run is a window of the text at a position that depends only on i.
std::vector<Tensor> make_batch(const std::string& text, const zero::MicroBatch& batch,
                               const Device& device) {
  std::vector<int32_t> ids, targets;
  for (int64_t i = 0; i < batch.samples; ++i) {
    models::RandomStream random(/*seed=*/1, "window", batch.first_sample + i);
    const int64_t begin = random.below(std::ssize(text) - tokens);
    for (int64_t t = begin; t < begin + tokens; ++t) {
      ids.push_back(static_cast<unsigned char>(text[static_cast<size_t>(t)]));
      targets.push_back(static_cast<unsigned char>(text[static_cast<size_t>(t) + 1]));
    }
  }
  const Shape shape{batch.samples, tokens};
  return {Tensor::from(ids, shape, device), Tensor::from(targets, shape, device)};
}

// The work of one rank. At stage 3 parameters of at most param_persistence_threshold elements, by
// default 100,000, stay whole on every rank: those of this model are all smaller.
void train(const std::string& text, Communicator& ranks, const Device& device) {
  const Decoder model;
  const bool prints = ranks.rank() == 0 && device.type() != Device::Type::meta;
  zero::Engine engine(model.store(), ranks, device, {.stage = 3, .param_persistence_threshold = 0});
  zero::Trainer trainer(
      engine, {.micro_batch = 8, .steps = 40, .schedule = {.rate = 3e-3}},
      {.batch = [&](const zero::MicroBatch& batch) { return make_batch(text, batch, device); },
       .forward =
           [&](Tape& tape, const zero::MicroBatch& batch) {
             return model.loss(tape.constant(batch.tensors[0]), batch.tensors[1]);
           }},
      {.after_step = [&](const zero::TrainedStep& step) {
        if (prints && (step.step + 1) % 10 == 0)
          std::printf("step %d loss %.4f\n", static_cast<int>(step.step) + 1, step.loss);
      }});
  trainer.run();

  // Every rank generates, because a pass gathers parameters from all ranks.
  std::string written = "const ";
  nn::KeyValueCache cache(depth, std::ssize(written) + 40);
  std::vector<int32_t> ids(written.begin(), written.end());
  for (int i = 0; i < 40; ++i) {
    ids = {model.next(engine.inference_tape(), cache, ids)};
    written += static_cast<char>(ids[0]);
  }
  if (prints) std::printf("%s\n", written.c_str());
}

int main(int count, char** arguments) {
  std::ifstream file(count > 1 ? arguments[1] : __FILE__, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (std::ssize(text) <= tokens) {
    std::fprintf(stderr, "decoder: expected a file of more than %d bytes\n",
                 static_cast<int>(tokens));
    return 2;
  }
  const auto program = [&](Communicator& ranks, const Device& device) {
    train(text, ranks, device);
  };
  const Plan plan = plan_ranks(2, program, {.device = {.threads = 1}});
  std::printf("%s\n", plan.table().c_str());
  const MemoryReport run = run_ranks(2, program, {.local = {.device = {.threads = 1}}});
  std::printf("the run %s the plan\n", run.ranks == plan.ranks ? "equals" : "differs from");
  return run.ranks == plan.ranks ? 0 : 1;
}

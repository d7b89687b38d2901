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

// A block is a unit: at stage 3 its parameters are gathered while a Tape::Use is open.
struct Block {
  const Unit& unit;
  nn::Norm attention_norm, mlp_norm;
  nn::Attention attention;
  nn::Mlp mlp;

  // A parameter's name is unique in its store. `layer` is the layer's index in a KeyValueCache.
  Block(ParameterStore& store, int64_t layer) : unit(store.unit("block." + std::to_string(layer))) {
    const nn::NormConfig rms = {.width = width, .kind = nn::NormKind::rms};
    attention_norm = {store, unit, unit.name + ".attention_norm", rms};
    attention = {store,
                 unit,
                 unit.name + ".attention",
                 {.width = width, .heads = 4, .kv_heads = 2, .rope = RopeOptions()},
                 layer};
    mlp_norm = {store, unit, unit.name + ".mlp_norm", rms};
    mlp = {store,
           unit,
           unit.name + ".mlp",
           {.width = width, .hidden = 160, .kind = nn::MlpKind::gated_silu}};
  }

  Var operator()(const nn::Pass& pass, Var x) const {
    const Tape::Use use(pass.tape, unit);
    x += attention(pass, attention_norm(pass, x));
    return x + mlp(pass, mlp_norm(pass, x));
  }
};

struct Decoder {
  ParameterStore store;
  const Unit& ends = store.unit("ends");  // token embedding, which is the head, too, and last norm
  nn::Embedding embedding{store, ends, "embedding", {.tokens = vocabulary, .width = width}};
  nn::Norm norm{store, ends, "norm", {.width = width, .kind = nn::NormKind::rms}};
  std::vector<Block> blocks;

  Decoder() {
    for (int64_t layer = 0; layer < depth; ++layer) blocks.emplace_back(store, layer);
  }

  Var hidden(const nn::Pass& pass, const Tensor& ids) const {
    Var x;
    {
      const Tape::Use use(pass.tape, ends);
      x = embedding(pass, ids);
    }
    for (const Block& block : blocks) x = block(pass, x);
    return x;
  }

  Var loss(Tape& tape, const Tensor& ids, const Tensor& targets) const {
    const nn::Pass pass{tape};
    const Var x = hidden(pass, ids);
    const Tape::Use use(tape, ends);
    return embedding.loss(pass, norm(pass, x), targets);
  }

  // The most likely token after those of the cache and `ids`.
  int32_t next(Tape tape, nn::KeyValueCache& cache, const std::vector<int32_t>& ids) const {
    const auto count = static_cast<int64_t>(ids.size());
    const nn::Pass pass{.tape = tape, .cache = &cache};
    const Var x = hidden(pass, Tensor::from(ids, {1, count}, tape.device()));
    cache.advance(count);
    const Tape::Use use(tape, ends);
    const Var last = norm(pass, slice(x, 1, count - 1, count));
    return static_cast<int32_t>(argmax(embedding.logits(pass, last)).value().item());
  }
};

// Sample i of the run is a window of the text at a place that depends on i alone.
std::vector<Tensor> make_batch(const std::string& text, const zero::MicroBatch& batch,
                               const Device& device) {
  std::vector<int32_t> ids, targets;
  for (int64_t i = 0; i < batch.samples; ++i) {
    models::RandomStream random(/*seed=*/1, "window", batch.first_sample + i);
    const int64_t begin = random.below(static_cast<int64_t>(text.size()) - tokens);
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
  zero::Engine engine(model.store, ranks, device, {.stage = 3, .param_persistence_threshold = 0});
  zero::Trainer trainer(
      engine, {.micro_batch = 8, .steps = 40, .schedule = {.rate = 3e-3}},
      {.batch = [&](const zero::MicroBatch& batch) { return make_batch(text, batch, device); },
       .forward =
           [&](Tape& tape, const zero::MicroBatch& batch) {
             return model.loss(tape, batch.tensors[0], batch.tensors[1]);
           }},
      {.after_step = [&](const zero::TrainedStep& step) {
        if (prints && (step.step + 1) % 10 == 0)
          std::printf("step %d loss %.4f\n", static_cast<int>(step.step) + 1, step.loss);
      }});
  trainer.run();

  // Every rank generates, because a pass gathers the parameters of all.
  std::string written = "const ";
  nn::KeyValueCache cache(depth, static_cast<int64_t>(written.size()) + 40);
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
  if (static_cast<int64_t>(text.size()) <= tokens) {
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

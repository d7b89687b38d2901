#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/cover.h"
#include "tests/zero/toy.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;

namespace {

constexpr int64_t B = 2, T = 5, C = 24, V = 37;
constexpr int tied_micro_batches = 8, tied_steps = 3;

/// A language model with tied embedding and head: the whole model, or one of two stages.
struct TiedModel {
  ParameterStore store;
  const Unit* embedding = nullptr;
  const Unit* body = nullptr;
  const Parameter *table = nullptr, *weight = nullptr, *bias = nullptr;

  TiedModel(int stages, int stage) {
    embedding = &store.unit("embedding");
    const bool first = stage == 0, last = stage + 1 == stages;
    table = &store.add(*embedding, "table", {V, C}, Init::normal(0.3f),
                       {.decay = true,
                        .copy = first ? Copy::own : Copy::mirror,
                        .has_mirror = first && stages > 1});
    if (!last) return;
    body = &store.unit("body");
    weight = &store.add(*body, "weight", {C, C}, Init::normal(0.2f), {.decay = true});
    bias = &store.add(*body, "bias", {C}, Init::zeros());
  }
};

Tensor ids_of(int g, uint64_t salt, const Device& device) {
  std::vector<int32_t> ids;
  for (const float x : random_floats(B * T, static_cast<uint64_t>(g) * 2 + salt, 0, V - 0.01))
    ids.push_back(static_cast<int32_t>(x));
  return Tensor::from(ids, {B, T}, device);
}

Var embed(Tape& tape, const TiedModel& model, int g) {
  const Tape::Use use(tape, *model.embedding);
  const Var table = tape.parameter(*model.table);
  return embedding(ids_of(g, 0, tape.device()), table);
}

/// `fused`: the head's gradient is computed during forward.
Var tied_loss(Tape& tape, const TiedModel& model, Var x, int g, bool fused) {
  {
    const Tape::Use use(tape, *model.body);
    const Var weight = tape.parameter(*model.weight);
    const Var bias = tape.parameter(*model.bias);
    const Var delta = linear(x, weight, bias, Activation::gelu_tanh);
    x = add(x, delta);
  }
  const Tape::Use use(tape, *model.embedding);
  const Var table = tape.parameter(*model.table);
  const Tensor targets = ids_of(g, 1, tape.device());
  if (fused) return projection_cross_entropy(x, table, targets);
  const Var logits = linear(x, table);
  return cross_entropy(logits, targets);
}

struct TiedOutcome {
  std::string hash;
  std::vector<double> losses, norms;
  bool operator==(const TiedOutcome&) const = default;
};

TiedOutcome train_alone(const Config& config, bool fused) {
  const TiedModel model(1, 0);
  Engine engine(model.store, Device::cpu(), config);
  TiedOutcome outcome;
  for (int step = 0; step < tied_steps; ++step) {
    std::vector<double> losses;
    for (int i = 0; i < tied_micro_batches; ++i) {
      const int g = step * tied_micro_batches + i;
      Tape tape = engine.tape();
      const Var x = embed(tape, model, g);
      const Var loss = tied_loss(tape, model, x, g, fused);
      engine.backward(tape, loss);
      losses.push_back(loss.value().item());
    }
    outcome.losses.push_back(engine.mean_loss(losses));
    outcome.norms.push_back(engine.step(1e-2f).gradient_norm);
  }
  outcome.hash = engine.parameter_hash();
  return outcome;
}

/// One of two stages, run by hand. The first runs `ahead` forward passes before the first backward.
class Stage {
 public:
  Stage(const Mesh& mesh, const Device& device, const Config& config, bool fused, size_t ahead)
      : mesh_(mesh),
        device_(device),
        model_(2, mesh.stage),
        engine_(model_.store, mesh, device, config),
        fused_(fused),
        ahead_(ahead) {}

  void step(int step) {
    const int own = tied_micro_batches / mesh_.shape.data;
    std::vector<double> losses;
    for (int i = 0; i < own; ++i) {
      const int g = step * tied_micro_batches + i * mesh_.shape.data + mesh_.data_rank;
      if (mesh_.stage == 1) {
        losses.push_back(last_stage(g));
        continue;
      }
      forward(g);
      if (passes_.size() > ahead_) backward();
    }
    while (!passes_.empty()) backward();
    outcome.losses.push_back(engine_.mean_loss(losses, own));
    outcome.norms.push_back(engine_.step(1e-2f).gradient_norm);
    for (const Sent& sent : sent_) sent.channel->wait(sent.ticket);
    sent_.clear();
  }

  TiedOutcome outcome;
  Engine& engine() { return engine_; }

 private:
  struct Pass {
    Tape tape;
    Var x;
  };
  struct Sent {
    Tensor tensor;
    Communicator* channel;
    Communicator::Ticket ticket;
  };
  Tensor receive(Communicator& channel, int root) {
    const Tensor x = Tensor::empty({B, T, C}, engine_.config().compute, device_);
    channel.wait(channel.broadcast(x, root, "x"));
    return x;
  }
  void send(Communicator& channel, int root, const Tensor& x) {
    sent_.push_back({x, &channel, channel.broadcast(x, root, "x")});
  }
  void forward(int g) {
    Tape tape = engine_.tape();
    const Var x = embed(tape, model_, g);
    send(*mesh_.next.forward, 0, x.value());
    passes_.push_back({std::move(tape), x});
  }
  void backward() {
    const Tensor gradient = receive(*mesh_.next.backward, 1);
    Pass& pass = passes_.front();
    engine_.backward(pass.tape, {&pass.x, 1}, {&gradient, 1});
    passes_.pop_front();
  }
  double last_stage(int g) {
    Tape tape = engine_.tape();
    const Var x = tape.variable(receive(*mesh_.previous.forward, 0));
    const Var loss = tied_loss(tape, model_, x, g, fused_);
    engine_.backward(tape, loss);
    send(*mesh_.previous.backward, 1, tape.gradient(x));
    return loss.value().item();
  }

  const Mesh& mesh_;
  const Device device_;
  const TiedModel model_;
  Engine engine_;
  const bool fused_;
  const size_t ahead_;
  std::deque<Pass> passes_;
  std::vector<Sent> sent_;
};

TiedOutcome train_in_stages(int data, const Config& config, bool fused, size_t ahead) {
  TiedOutcome outcome;
  std::mutex mutex;
  run_local(2 * data, [&](Communicator& world, const Device& device) {
    const Mesh mesh(world, {.data = data, .pipeline = 2});
    Stage stage(mesh, device, config, fused, ahead);
    for (int step = 0; step < tied_steps; ++step) stage.step(step);
    stage.outcome.hash = stage.engine().parameter_hash();
    const std::lock_guard lock(mutex);
    if (outcome.hash.empty()) outcome = stage.outcome;
    if (!(outcome == stage.outcome)) throw ShapeError("ranks ended with different outcomes");
  });
  return outcome;
}

}  // namespace

TEST_CASE("tied embeddings on two pipeline stages give the same bits as on one stage") {
  std::map<std::pair<DType, bool>, TiedOutcome> alone;
  for (const DType compute : {DType::f32, DType::bf16})
    for (const bool fused : {false, true})
      alone[{compute, fused}] = train_alone({.compute = compute}, fused);
  for_cover(
      [&](DType compute, bool fused, int data, int stage, size_t ahead) {
        const Config config{.stage = stage,
                            .compute = compute,
                            .overlap_comm = data != 4,
                            .param_persistence_threshold = data == 2 ? 0 : 100};
        INFO(name_of(compute), ", fused ", fused, ", data ", data, ", stage ", stage);
        CHECK(train_in_stages(data, config, fused, ahead) == alone.at({compute, fused}));
      },
      std::vector{DType::f32, DType::bf16}, std::array{false, true}, std::vector{1, 2, 4},
      std::vector{0, 1, 2, 3},
      // 1 for the order of 1F1B; all micro-batches for GPipe, which runs all forward passes first.
      std::vector<size_t>{1, tied_micro_batches});
}

TEST_CASE("offload changes no bit of tied embeddings") {
  const LocalOptions options{.device = {.swap = {.directory = "/tmp"}}};
  const TiedOutcome alone = train_alone({.compute = DType::bf16}, false);
  for (const Space space : {Space::host, Space::file})
    run_local(
        4,
        [&](Communicator& world, const Device& device) {
          const Mesh mesh(world, {.data = 2, .pipeline = 2});
          const Config config{
              .stage = 3,
              .compute = DType::bf16,
              .offload = {.parameter = space, .gradient = space, .optimizer = space},
              .param_persistence_threshold = 0};
          Stage stage(mesh, device, config, false, 1);
          for (int step = 0; step < tied_steps; ++step) stage.step(step);
          if (stage.engine().parameter_hash() != alone.hash) throw ShapeError("other bits");
        },
        options);
}

namespace {

/// Whether the first and the last stage use the table in each micro-batch.
struct Uses {
  bool first, last;
};
constexpr Uses uses[] = {{true, true}, {true, false}, {false, true}, {false, false}};

std::vector<float> chosen(size_t i, uint64_t salt) { return random_floats(V * C, i * 2 + salt); }

}  // namespace

TEST_CASE(
    "a micro-batch may leave out the mirror, its owner or both and still gives one stage's "
    "parameters") {
  for (const DType compute : {DType::f32, DType::bf16}) {
    std::string alone;
    for (const int data : {0, 1, 2}) {  // 0: one stage
      run_local(std::max(1, 2 * data), [&](Communicator& world, const Device& device) {
        const Mesh mesh(world, {.data = std::max(1, data), .pipeline = data == 0 ? 1 : 2});
        const TiedModel model(mesh.shape.pipeline, mesh.stage);
        Engine engine(model.store, mesh, device, {.stage = 1, .compute = compute});
        for (size_t i = static_cast<size_t>(mesh.data_rank); i < std::size(uses);
             i += static_cast<size_t>(mesh.shape.data)) {
          Tape tape = engine.tape();
          Var loss;
          {
            const Tape::Use use(tape, *model.embedding);
            if (mesh.is_first_stage() && uses[i].first)
              loss = with_gradient(tape, loss, *model.table, chosen(i, 0));
            if (mesh.is_last_stage() && uses[i].last)
              loss = with_gradient(tape, loss, *model.table, chosen(i, 1));
          }
          if (!loss) loss = tape.variable(Tensor::zeros({1}, DType::f32, device));
          engine.backward(tape, loss);
        }
        engine.step(1e-2f);
        const std::string hash = engine.parameter_hash();
        if (data == 0) alone = hash;
        if (hash != alone) throw ShapeError("other bits on data " + std::to_string(data));
      });
    }
  }
}

TEST_CASE("a mirror has the owner's values but no gradient sum and no moments") {
  run_local(2, [&](Communicator& world, const Device& device) {
    const Mesh mesh(world, {.pipeline = 2});
    Stage stage(mesh, device, {.compute = DType::bf16}, false, 1);
    stage.step(0);
    Engine& engine = stage.engine();
    const Parameter& table = *engine.store().find("table");
    const std::vector<float> values = engine.read(table, Engine::State::master);
    if (mesh.stage == 1) {
      if (!engine.read(table, Engine::State::moment1).empty()) throw ShapeError("has moments");
      const zero::RestingBytes rest = engine.resting_bytes();
      if (rest.gradient != 4 * (C * C + C) || rest.parameter != 2 * (V * C + C * C + C))
        throw ShapeError("takes other bytes");
    }
    // An i64 checksum of the values rounded to bf16, for both stages.
    std::vector<int64_t> sums(2);
    for (size_t i = 0; i < values.size(); ++i)
      sums[static_cast<size_t>(mesh.stage)] +=
          static_cast<int64_t>(i + 1) *
          static_cast<int64_t>(static_cast<float>(bf16(values[i])) * 0x1p20f);
    const Tensor both = Tensor::from(sums, {2}, device);
    world.wait(world.all_reduce(both, "sums"));
    sums = both.to_host<int64_t>();
    if (sums[0] != sums[1] || sums[0] == 0) throw ShapeError("the mirror has other values");
  });
}

TEST_CASE(
    "an engine refuses pipeline ends that share different parameters and an owner without its "
    "mirror") {
  const auto make = [](Communicator& world, const Device& device) {
    const Mesh mesh(world, {.pipeline = 2});
    ParameterStore store;
    const Unit& unit = store.unit("unit");
    store.add(unit, mesh.stage == 0 ? "table" : "other", {8}, Init::ones(),
              {.copy = mesh.stage == 0 ? Copy::own : Copy::mirror, .has_mirror = mesh.stage == 0});
    const Engine engine(store, mesh, device);
  };
  CHECK_THROWS_AS(run_local(2, make), ConfigError);
  const TiedModel owner(2, 0);
  CHECK_THROWS_AS(Engine(owner.store, Device::cpu()), ConfigError);
}

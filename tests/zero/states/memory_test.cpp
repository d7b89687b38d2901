#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include "tests/zero/toy.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/zero/optimizer/elementwise.h"

using namespace zg;
using namespace zg::testing;
using zero::Engine;

namespace {

struct StateBytes {
  int64_t parameter = 0, gradient = 0, optimizer = 0;
  bool operator==(const StateBytes&) const = default;
};

StateBytes live(const Device& device) {
  const BytesByPurpose bytes = device.memory().live_by_purpose();
  return {bytes[static_cast<size_t>(Purpose::parameter)],
          bytes[static_cast<size_t>(Purpose::gradient)],
          bytes[static_cast<size_t>(Purpose::optimizer)]};
}

int64_t padded(std::initializer_list<int64_t> sizes) {
  int64_t sum = 0;
  for (int64_t n : sizes) sum += (n + 63) / 64 * 64;
  return sum;
}

/// Toy's by hand: elements of each flat array with every parameter on a multiple of 64.
const int64_t first = padded({7, 5 * 31}), first_frozen = padded({3 * 4});
const int64_t second = padded({129, 65});

}  // namespace

TEST_CASE(
    "memory between steps is f32 values or masters, an f32 sum, two moments, and frozen values") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    const int64_t wide = compute == DType::f32 ? 4 : 2;
    StateBytes expected;
    for (int64_t n : {first, second}) {
      if (compute == DType::f32) expected.parameter += arena_bytes(n * wide);
      expected.gradient += arena_bytes(n * 4);
      expected.optimizer += (compute == DType::f32 ? 2 : 3) * arena_bytes(n * 4);
    }
    expected.parameter += arena_bytes(first_frozen * wide);
    for (const Device& device : {Device::cpu(), Device::meta()}) {
      const Toy toy;
      {
        Engine engine(toy.store, device, {.compute = compute, .loss_scaling = low_scale});
        CHECK((live(device) == expected));
        CHECK(device.memory().live() ==
              expected.parameter + expected.gradient + expected.optimizer);
        if (device.type() == Device::Type::cpu)
          for (int step = 0; step < 3; ++step) {
            train_step(engine, step);
            CHECK((live(device) == expected));
            CHECK(device.memory().live() ==
                  expected.parameter + expected.gradient + expected.optimizer);
          }
      }
      CHECK(device.memory().live() == 0);
    }
  }
}

TEST_CASE("16-bit values of one rank exist from forward to a step's last backward") {
  for (const DType compute : {DType::bf16, DType::f16})
    for (const int64_t announced : {2, 0}) {
      CAPTURE(announced);
      const Toy toy;
      const Device device = Device::cpu();
      Engine engine(toy.store, device, {.compute = compute, .loss_scaling = low_scale});
      const int64_t frozen = arena_bytes(first_frozen * 2);
      const int64_t all = frozen + arena_bytes(first * 2) + arena_bytes(second * 2);
      const auto values = [&] { return live(device).parameter; };
      const auto forward = [&](Tape& tape) {
        const Tape::Use use(tape, toy.first);
        Var x = tape.variable(Tensor::full({1, 31}, 1.0, compute, device));
        x = linear(x, tape.parameter(toy.weight));
        const Tape::Use other(tape, toy.second);
        return sum(mul(x, slice(tape.parameter(toy.gain), 0, 0, 5)));
      };
      CHECK(values() == frozen);
      for (int step = 0; step < 2; ++step) {
        if (announced > 0) engine.expect_step(announced, 1e-2f);
        for (const bool last : {false, true}) {
          Tape tape = engine.tape();
          const Var loss = forward(tape);
          CHECK(values() == all);
          engine.backward(tape, loss);
          CHECK(values() == (last && announced > 0 ? frozen : all));
        }
        const Tape tape = engine.inference_tape();
        const Tape::Use use(tape, toy.first);  // also over the step
        engine.step(1e-2f);
        const std::vector<float> masters = engine.read(toy.weight, Engine::State::master);
        std::vector<double> expected;
        for (const float master : masters)
          expected.push_back(static_cast<double>(rounded(master, compute)));
        CHECK(tape.parameter(toy.weight).value().to_doubles() == expected);
        CHECK(values() == frozen + arena_bytes(first * 2));
      }
      train_step(engine, 2);
      CHECK(values() == frozen);
      engine.expect_step(1, 1e-2f);
      const Tape other = engine.inference_tape();
      Tape tape = engine.tape();
      const Var loss = forward(tape);
      const Tape::Use use(other, toy.first);  // while backward frees values
      engine.backward(tape, loss);
      CHECK(values() == frozen + arena_bytes(first * 2));
    }
}

TEST_CASE("16-bit values of one rank are rounded once a step, also those that a segment reads") {
  const Toy toy;
  const Device device = Device::cpu();
  Engine engine(toy.store, device, {.compute = DType::bf16});
  const auto full = [&](const Shape& shape) {
    return Tensor::full(shape, 1.0, DType::bf16, device);
  };
  engine.expect_step(2, 1e-2f);
  std::weak_ptr<Buffer> values;
  for (int reads = 0; reads < 4;) {  // two micro-batches
    Tape tape = engine.tape();
    Var loss;
    {
      const Tape::Use use(tape, toy.first);
      loss = sum(add(tape.variable(full({7})), tape.parameter(toy.bias)));
    }
    const Var x = tape.variable(full({1, 31}));
    const Var y = checkpoint(tape, {&x, 1}, [&](Tape& segment, std::span<const Var> inputs) {
      const Tape::Use use(segment, toy.first);
      const Var weight = segment.parameter(toy.weight);
      if (reads++ == 0) values = weight.value().buffer();
      CHECK(values.lock() == weight.value().buffer());
      return linear(inputs[0], weight);
    });
    engine.backward(tape, add(loss, sum(y)));
  }
  CHECK(values.expired());
}

TEST_CASE("meta takes the same bytes as a real run, step by step") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    const Device real = Device::cpu(), meta = Device::meta();
    const Toy toy;
    Engine on_real(toy.store, real, {.compute = compute, .loss_scaling = low_scale}),
        on_meta(toy.store, meta, {.compute = compute, .loss_scaling = low_scale});
    CHECK(real.memory().peak() == meta.memory().peak());
    real.memory().reset_peaks();
    meta.memory().reset_peaks();
    for (uint64_t step = 1; step <= 2; ++step) {
      Gradients gradients = random_gradients(toy.trainable(), step);
      run_micro_batch(on_real, gradients);
      run_micro_batch(on_meta, gradients);
      if (step == 2) gradients[&toy.bias][0] = NAN;  // skipping takes what a step takes
      run_micro_batch(on_real, gradients);
      run_micro_batch(on_meta, gradients);
      CHECK(on_real.step(1e-3f).skipped == (step == 2));
      CHECK_FALSE(on_meta.step(1e-3f).skipped);
      const auto real_rows = real.memory().rows(), meta_rows = meta.memory().rows();
      REQUIRE(real_rows.size() == meta_rows.size());
      for (size_t i = 0; i < real_rows.size(); ++i) {
        CHECK(real_rows[i].phase == meta_rows[i].phase);
        CHECK(real_rows[i].live == meta_rows[i].live);
        CHECK(real_rows[i].peak == meta_rows[i].peak);
      }
    }
  }
}

TEST_CASE("an engine that exceeds the memory limit throws OutOfMemory in its constructor") {
  const Toy toy;
  CHECK_THROWS_AS(Engine(toy.store, Device::cpu(0, {.memory_limit = 4096})), OutOfMemory);
}

TEST_CASE(
    "resting_bytes equals a rank's live memory, and the sum over all ranks follows the formula") {
  const Toy toy;
  int64_t trainable = 0, frozen = 0;
  for (const auto& parameter : toy.store.parameters())
    (parameter->trainable ? trainable : frozen) += parameter->shape.numel();
  for (int stage = 0; stage <= 3; ++stage)
    for (int world : {1, 2, 3}) {
      INFO("stage ", stage, ", world ", world);
      zero::RestingBytes sum;
      for (int rank = 0; rank < world; ++rank) {
        const Device device = Device::meta(rank);
        const auto ranks = counting_communicator(rank, world);
        const Engine engine(
            toy.store, *ranks, device,
            {.stage = stage, .compute = DType::bf16, .param_persistence_threshold = 0});
        const zero::RestingBytes rest = engine.resting_bytes();
        CHECK(rest.total() == device.memory().live());
        CHECK(rest.padding > 0);
        sum.parameter += rest.parameter;
        sum.gradient += rest.gradient;
        sum.optimizer += rest.optimizer;
      }
      // On one rank the trainable ones exist only while they are used.
      CHECK(sum.parameter ==
            2 * (world == 1 ? frozen : (trainable + frozen) * (stage == 3 ? 1 : world)));
      CHECK(sum.gradient == 4 * trainable);
      CHECK(sum.optimizer == 12 * trainable * (stage == 0 ? world : 1));
    }
}

TEST_CASE("bytes of a rank fall with the number of ranks where an optimizer needs whole matrices") {
  struct Whole final : zero::Optimizer {
    std::string name() const override { return "whole"; }
    bool needs_whole() const override { return true; }
    bool updates(const Parameter& parameter) const override { return parameter.shape.rank() == 2; }
    std::shared_ptr<const Optimizer> others() const override { return zero::adam(); }
    std::vector<State> states() const override { return {{.name = "momentum"}}; }
    void update(const zero::OptimizerStep&, std::span<const zero::OptimizerRange>,
                Stream&) const override {}
  };
  ParameterStore store;
  for (int block = 0; block < 12; ++block) {
    const std::string name = "block." + std::to_string(block);
    const Unit& unit = store.unit(name);
    for (const int64_t size : {3, 1, 4, 4})  // as those of a GPT's block
      store.add(unit, name + "." + std::to_string(unit.parameters.size()), {size * 64, 64},
                Init::zeros());
    store.add(unit, name + ".norm", {64}, Init::ones());
  }
  store.add(store.unit("head"), "head", {1 << 16}, Init::zeros());
  const zero::Config config{.compute = DType::bf16,
                            .update = {.optimizer = std::make_shared<Whole>()}};
  for (const int stage : {0, 1, 2}) {
    CAPTURE(stage);
    int64_t last = std::numeric_limits<int64_t>::max();
    for (const int ranks : {1, 2, 4, 8, 16}) {
      CAPTURE(ranks);
      std::mutex mutex;
      int64_t most = 0, padding = 0;
      plan_ranks(ranks, [&](Communicator& comm, const Device& device) {
        zero::Config own = config;
        own.stage = stage;
        const Engine engine(store, comm, device, own);
        const zero::RestingBytes rest = engine.resting_bytes();
        const std::lock_guard lock(mutex);
        const int64_t unused = ranks == 1 ? 2 * store.numel() : 0;  // values between their uses
        most = std::max(most, rest.total() + unused);
        padding = std::max(padding, rest.padding);
      });
      CHECK(most < last);
      if (stage == 0) CHECK(padding < most / 10);
      last = most;
    }
  }
}

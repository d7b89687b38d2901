#include "zerograd/autograd/values.h"

#include <doctest/doctest.h>

#include <cstring>

#include "tests/autograd/values_case.h"
#include "tests/support/error_message.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/plan.h"

using namespace zg;
using namespace zg::testing;
using Net = ValuesNet;

TEST_CASE("matrices that are stored in bf16 or f16 give the bits of f32 matrices of equal values") {
  const Net net;
  const Device device = Device::cpu();
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const int64_t rows : {Net::positions, 40 * Net::positions}) {
      INFO(name_of(dtype), ", rows ", rows);
      WeightSource weights = rounded(net, dtype);
      Values narrow(net.store, weights, device);
      weights.dtypes.clear();
      Values wide(net.store, weights, device);
      CHECK(narrow.stored(net.table).dtype() == dtype);
      CHECK(narrow.stored(net.bias).dtype() == DType::f32);
      CHECK(wide.stored(net.table).dtype() == DType::f32);
      Tape a = narrow.inference_tape(), b = wide.inference_tape();
      const std::vector<Tensor> results = net.run(a, rows), expected = net.run(b, rows);
      for (size_t i = 0; i < results.size(); ++i) {
        CAPTURE(i);
        const std::vector<float> x = results[i].to_host<float>(), y = expected[i].to_host<float>();
        REQUIRE(x.size() == y.size());
        CHECK(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
      }
    }
}

TEST_CASE("narrow matrices are never converted as a whole by ops, and a plan equals the run") {
  const Net net;
  const WeightSource weights = rounded(net, DType::bf16);
  const auto program = [&](Communicator&, const Device& device) {
    Values values(net.store, weights, device);
    CHECK(values.bytes() == 2 * (net.store.numel() - Net::hidden) + 4 * Net::hidden);
    device.memory().reset_peaks();
    Tape tape = values.inference_tape();
    const Tape::Use use(tape, net.unit);
    const Tensor x = Tensor::zeros({1, Net::width}, DType::f32, device);
    const int64_t before = device.memory().live();
    const Var y = linear(x, tape.parameter(net.table));
    // 1 MiB of converted rows, the logits and x.
    CHECK(device.memory().peak() - before <= (1 << 20) + arena_bytes(4 * Net::tokens));
    net.run(tape, Net::positions);
  };
  const Plan plan = plan_ranks(1, program);
  const MemoryReport run = run_ranks(1, program, {.expect = &plan});
  CHECK(plan.ranks == run.ranks);
}

TEST_CASE("a value that an op reads as a whole is converted once, until its unit is released") {
  const Net net;
  const Device device = Device::cpu();
  Values values(net.store, rounded(net, DType::bf16), device);
  CHECK(values.dtype(net.up) == DType::f32);
  CHECK(contains(message_of<NotResident>([&] { values.value(net.up); }), "'up'"));
  const int64_t before = device.memory().live();
  {
    Tape tape = values.inference_tape();
    const Tape::Use use(tape, net.unit);
    const Tensor first = tape.parameter(net.up).value(), again = tape.parameter(net.up).value();
    CHECK(first.dtype() == DType::f32);
    CHECK(first.buffer() == again.buffer());
    CHECK(first.to_doubles() == values.stored(net.up).to_doubles());
  }
  CHECK(device.memory().live() == before);
}

TEST_CASE("weights are stored as asked for, and never wider than the computation") {
  const Net net;
  const Device device = Device::cpu();
  const WeightSource weights = initial_weights(net.store, 7);
  const Values f32(net.store, weights, device),
      f16(net.store, weights, device, {.stored = DType::f16});
  const Values bf16(net.store, weights, device, {.compute = DType::bf16});
  CHECK(f32.stored(net.up).dtype() == DType::f32);
  CHECK(f16.stored(net.up).dtype() == DType::f16);
  CHECK(bf16.stored(net.up).dtype() == DType::bf16);
  CHECK(bf16.stored(net.bias).dtype() == DType::bf16);
  std::vector<float> start(static_cast<size_t>(net.up.shape.numel()));
  initialise(net.up, 7, 0, start);
  CHECK(f32.stored(net.up).to_host<float>() == start);
}

TEST_CASE("values refuse gradients, missing weights, other shapes and dtypes, by name") {
  const Net net;
  const Device device = Device::cpu();
  WeightSource weights = initial_weights(net.store, 7);
  Values values(net.store, weights, device);
  Tape tape(device, &values);
  const auto train = [&] {
    Var loss;
    {
      const Tape::Use use(tape, net.unit);
      loss =
          sum(linear(Tensor::zeros({1, Net::width}, DType::f32, device), tape.parameter(net.up)));
    }
    tape.backward(loss);
  };
  CHECK(contains(message_of<TapeError>(train), "values: unit 'unit' got gradients"));
  CHECK(contains(message_of<ConfigError>([&] {
                   const Values wrong(net.store, weights, device, {.stored = DType::i32});
                 }),
                 "values: stored: expected f32, bf16 or f16, got i32"));
  weights.shapes.at("up") = Shape{1, 2};
  const auto load = [&] { const Values wrong(net.store, weights, device); };
  CHECK(contains(message_of<FileError>(load), "'up' has shape [1, 2]; expected [600, 512]"));
  weights.shapes.erase("up");
  CHECK(contains(message_of<FileError>(load), "has no 'up' [600, 512]"));
}

#include "zerograd/autograd/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "tests/autograd/values_case.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/tensor_files.h"

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

TEST_CASE("backward does not read a narrow matrix that was changed since forward") {
  const Net net;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Values values(net.store, rounded(net, dtype), Device::cpu());
    Tape tape = values.tape();
    Var y;
    {
      const Tape::Use use(tape, net.unit);
      y = sum(mul(tape.parameter(net.up), tape.parameter(net.up)));
    }
    values.set(net.up, Tensor::zeros(net.up.shape, DType::f32, values.device()));
    CHECK_ERROR(TapeError, "mul: backward needs parameter 'up' as it was in forward",
                tape.backward(y));
  }
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

namespace {

/// Two parameters in two units, and a third one in a store of its own.
struct TwoStores {
  ParameterStore store, other;
  const Unit &first = store.unit("first"), &second = store.unit("second"),
             &third = other.unit("third");
  const Parameter& w = store.add(first, "w", {3, 4}, Init::normal(0.5f));
  const Parameter& b = store.add(second, "b", {3}, Init::normal(0.5f));
  const Parameter& v = other.add(third, "v", {3, 4}, Init::normal(0.5f));
  const Device device = Device::cpu();
  const Tensor x = Tensor::from(std::vector<double>{1, -2, 3, 0.5, 2, 1, -1, 4}, {2, 4}, device);

  Values values_of(const ParameterStore& of) const {
    return {of, initial_weights(of, 3), device, {.compute = DType::f64}};
  }
  /// Uses `w` twice, once outside any unit.
  Var loss(Tape& tape) const {
    const Var y = linear(x, tape.parameter(w), tape.parameter(b));
    const Tape::Use use(tape, first);
    return sum(y * linear(x, tape.parameter(w)));
  }
};

}  // namespace

TEST_CASE("values give the sum of the gradients of several tapes, also of uses outside a unit") {
  const TwoStores net;
  Values values = net.values_of(net.store);
  CHECK(!values.gradient(net.w));
  const auto run = [&] {
    Tape tape = values.tape();
    tape.backward(net.loss(tape));
  };
  run();
  const std::vector<double> once = values.gradient(net.w).to_doubles();
  // Loss = sum over n, o of y (y - b), y = x w^T + b. Its slope in w is x^T (2 y - b).
  const std::vector<double> w = values.value(net.w).to_doubles(),
                            b = values.value(net.b).to_doubles(), x = net.x.to_doubles();
  for (size_t o = 0; o < 3; ++o)
    for (size_t i = 0; i < 4; ++i) {
      double expected = 0;
      for (size_t n = 0; n < 2; ++n) {
        double y = b[o];
        for (size_t k = 0; k < 4; ++k) y += x[n * 4 + k] * w[o * 4 + k];
        expected += x[n * 4 + i] * (2 * y - b[o]);
      }
      CHECK(once[o * 4 + i] == doctest::Approx(expected).epsilon(1e-12));
    }
  run();
  std::vector<double> twice = values.gradient(net.w).to_doubles();
  for (double& value : twice) value /= 2;
  CHECK(twice == once);
  CHECK(values.gradients().size() == 2);
  values.clear_gradients();
  CHECK(values.gradients().empty());
}

TEST_CASE("values change in place and by set(), and each parameter has a gradient of its own") {
  const TwoStores net;
  Values values = net.values_of(net.store);
  const Tensor target = Tensor::from(std::vector<double>{5, 6, 7}, {3}, net.device);
  values.set(net.b, target);
  CHECK(values.value(net.b).to_doubles() == target.to_doubles());
  copy(Tensor::zeros({3}, DType::f64, net.device), values.value(net.b), net.device.compute());
  CHECK(values.value(net.b).to_doubles() == std::vector<double>(3));
  // add() hands one tensor to both of its inputs.
  ParameterStore pair;
  const Unit& unit = pair.unit("pair");
  const Parameter &p = pair.add(unit, "p", {2}, Init::ones()),
                  &q = pair.add(unit, "q", {2}, Init::ones());
  Values both(pair, initial_weights(pair, 1), net.device);
  Tape tape = both.tape();
  tape.backward(sum(add(tape.parameter(p), tape.parameter(q))));
  fill_zero(both.gradient(p), net.device.compute());
  CHECK(both.gradient(q).to_doubles() == std::vector<double>(2, 1.0));
}

TEST_CASE("one tape reads two stores, and each gets the gradients that a tape of its own gives") {
  const TwoStores net;
  Values a = net.values_of(net.store), b = net.values_of(net.other);
  const auto loss_of = [&](Tape& tape, const Var& w, const Var& v) {
    return sum(linear(net.x, w) * linear(net.x, v) * linear(net.x, w, tape.parameter(net.b)));
  };
  Tape together(net.device, {&a, &b});
  together.backward(loss_of(together, together.parameter(net.w), together.parameter(net.v)));
  const auto gradient_in_both = a.gradient(net.w).to_doubles(),
             other = b.gradient(net.v).to_doubles();
  a.clear_gradients();
  Tape alone = a.tape();
  const Var v = alone.variable(b.value(net.v));
  alone.backward(loss_of(alone, alone.parameter(net.w), v));
  CHECK(a.gradient(net.w).to_doubles() == gradient_in_both);
  CHECK(alone.gradient(v).to_doubles() == other);
}

TEST_CASE("values refuse other stores, missing weights, other shapes and dtypes, by name") {
  const Net net;
  const Device device = Device::cpu();
  WeightSource weights = initial_weights(net.store, 7);
  Values values(net.store, weights, device);
  const TwoStores stores;
  Tape tape = values.tape();
  CHECK(contains(message_of<TapeError>([&] { tape.parameter(stores.w); }),
                 "unit 'first' is used on a tape whose ParameterSource has another store"));
  CHECK(contains(message_of<ConfigError>([&] { values.gradient(stores.w); }),
                 "'w' is not a parameter of the store that the values were made with"));
  CHECK(contains(message_of<ShapeError>([&] { values.set(net.bias, stores.x); }),
                 "'bias': expected values of [600], got [2, 4]"));
  CHECK(contains(message_of<ConfigError>([&] {
                   const Values wrong(net.store, weights, device, {.stored = DType::i32});
                 }),
                 "values: stored: expected f64, f32, bf16 or f16, got i32"));
  weights.shapes.at("up") = Shape{1, 2};
  const auto load = [&] { const Values wrong(net.store, weights, device); };
  CHECK(contains(message_of<FileError>(load), "'up' has shape [1, 2]; expected [600, 512]"));
  weights.shapes.erase("up");
  CHECK(contains(message_of<FileError>(load), "has no 'up' [600, 512]"));
}

namespace {

/// y = w x + b with one matrix and one vector.
struct Line {
  ParameterStore store;
  const Unit& unit = store.unit("line");
  const Parameter& w = store.add(unit, "w", {2, 3}, Init::normal(1.0f));
  const Parameter& b = store.add(unit, "b", {2}, Init::zeros());

  void backward(Values& values) const {
    const Tensor x = Tensor::from(std::vector<float>{1, -2, 30}, {1, 3}, values.device());
    Tape tape = values.tape();
    tape.backward(sum(linear(x, tape.parameter(w), tape.parameter(b))));
  }
};

}  // namespace

TEST_CASE("a parameter of values is frozen and trained again during a run") {
  const Line line;
  Values values(line.store, initial_weights(line.store, 1), Device::cpu());
  for (const bool trains : {true, false, true}) {
    CAPTURE(trains);
    values.set_trainable(line.w, trains);
    CHECK(values.trains(line.w) == trains);
    values.clear_gradients();
    line.backward(values);
    CHECK(static_cast<bool>(values.gradient(line.w)) == trains);
    CHECK(static_cast<bool>(values.gradient(line.b)));
  }
}

TEST_CASE("gradients are clipped by their norm, and those within the limit keep their bits") {
  const Line line;
  const auto program = [&](Communicator&, const Device& device) {
    Values values(line.store, initial_weights(line.store, 1), device);
    line.backward(values);
    const auto all = [&] {
      std::vector<float> numbers;
      for (const auto& [name, gradient] : values.gradients())
        for (const float x : gradient.to_host<float>()) numbers.push_back(x);
      return numbers;
    };
    const std::vector<float> before = all();
    double squares = 0;
    for (const float x : before) squares += double{x} * x;
    const double norm = std::sqrt(squares);
    for (const double limit : {2 * norm + 1, 0.25}) {
      const Tensor found = values.clip_gradient_norm(limit);
      if (device.type() == Device::Type::meta) continue;
      CAPTURE(limit);
      CHECK(found.item() == doctest::Approx(norm).epsilon(1e-6));
      const std::vector<float> after = all();
      for (size_t i = 0; i < after.size(); ++i)
        CHECK(after[i] == doctest::Approx(before[i] * std::min(1.0, limit / norm)).epsilon(1e-6));
      if (limit > norm) CHECK(after == before);
    }
    CHECK_THROWS_WITH_AS(values.clip_gradient_norm(0),
                         "values: clip_gradient_norm: expected a limit above 0, got 0",
                         ConfigError);
  };
  const Plan plan = plan_ranks(1, program);
  run_ranks(1, program, {.expect = &plan});
}

TEST_CASE("gradients are clipped by value, and a moving average has memory of its own") {
  const Line line;
  const auto program = [&](Communicator&, const Device& device) {
    Values values(line.store, initial_weights(line.store, 1), device);
    line.backward(values);
    values.clip_gradients(1.5);
    CHECK((device.type() == Device::Type::meta ||
           values.gradient(line.w).to_host<float>() ==
               std::vector<float>{1, -1.5f, 1.5f, 1, -1.5f, 1.5f}));
    Values average = values.copy();
    CHECK(average.gradients().empty());
    values.set(line.b, Tensor::full({2}, 4.0, DType::f32, device));
    average.average(values, 0.75);
    CHECK((device.type() == Device::Type::meta ||
           average.value(line.b).to_host<float>() == std::vector<float>{1, 1}));
    CHECK(average.value(line.w).to_host<float>() == values.value(line.w).to_host<float>());
  };
  const Plan plan = plan_ranks(1, program);
  run_ranks(1, program, {.expect = &plan});

  Values values(line.store, initial_weights(line.store, 1), Device::cpu());
  const Line another;
  const Values foreign(another.store, initial_weights(another.store, 1), Device::cpu());
  CHECK_THROWS_WITH_AS(values.clip_gradients(0),
                       "values: clip_gradients: expected a limit above 0, got 0", ConfigError);
  CHECK_THROWS_WITH_AS(values.average(values, 1.5),
                       "values: average: expected a decay from 0 to 1, got 1.5", ConfigError);
  CHECK_THROWS_WITH_AS(values.average(foreign, 0.5),
                       "values: average: expected values of the same store; try copy()",
                       ConfigError);
}

TEST_CASE("values are saved as safetensors and loaded by name, in their stored dtypes") {
  const TemporaryFolder folder;
  const Net net;
  const Device device = Device::cpu();
  const std::string path = folder / "net.safetensors";
  const Values narrow(net.store, rounded(net, DType::bf16), device);
  narrow.save(path);
  Values wide(net.store, initial_weights(net.store, 9), device, {.compute = DType::f64});
  wide.load(path);
  for (const auto& [name, tensor] : narrow.tensors()) {
    CAPTURE(name);
    CHECK(wide.tensors().at(name).dtype() == DType::f64);
    CHECK(wide.tensors().at(name).to_doubles() == tensor.to_doubles());
  }
  const Line line;
  Values other(line.store, initial_weights(line.store, 1), device);
  CHECK(contains(message_of<FileError>([&] { other.load(path); }), "has no 'w' [2, 3]"));
  save_safetensors(path, {{"w", Tensor::zeros({3, 2}, DType::f32, device)},
                          {"b", Tensor::zeros({2}, DType::f32, device)}});
  CHECK(contains(message_of<FileError>([&] { other.load(path); }), "[3, 2]"));
}

TEST_CASE("a Var prints its value, and whether it needs a gradient") {
  const Line line;
  Values values(line.store, initial_weights(line.store, 1), Device::cpu());
  Tape tape = values.tape();
  std::ostringstream out;
  out << tape.parameter(line.b) << "; " << Var(Tensor::full({}, 2.5, DType::f64, Device::cpu()))
      << "; " << Var();
  CHECK(out.str() == "[0. 0.] f32 [2], needs a gradient; 2.5 f64 []; absent");
}

#include "zerograd/autograd/tape.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <type_traits>

#include "tests/autograd/fake_source.h"
#include "tests/support/error_message.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/elementwise/elementwise.h"

using namespace zg;
using namespace zg::testing;

namespace {

Tensor multiplied(const Tensor& a, const Tensor& b) {
  Tensor y = Tensor::empty(a.shape(), a.dtype(), a.device());
  kernels::binary({.op = BinaryOp::multiply, .a = a, .b = b, .y = y}, a.device().compute());
  return y;
}

struct Nothing {};

/// y = a * b: reads both values in backward.
Var times(const Var& a, const Var& b) {
  const Tensor x = a.value(), y = b.value();
  return record("times", {a, b}, multiplied(x, y), {x, y}, Nothing{},
                [](const Nothing&, const BackwardPass& pass) {
                  const Tensor& g = pass.gradient_of_output();
                  if (pass.needs(0)) pass.accumulate(0, multiplied(g, pass.saved(1)));
                  if (pass.needs(1)) pass.accumulate(1, multiplied(g, pass.saved(0)));
                });
}

/// y = a + b: backward reads no value and passes the same gradient tensor to both inputs.
Var plus(const Var& a, const Var& b) {
  Tensor y = Tensor::empty(a.shape(), a.dtype(), a.device());
  kernels::binary({.op = BinaryOp::add, .a = a.value(), .b = b.value(), .y = y},
                  a.device().compute());
  return record("plus", {a, b}, y, {}, Nothing{}, [](const Nothing&, const BackwardPass& pass) {
    pass.accumulate(0, pass.gradient_of_output());
    pass.accumulate(1, pass.gradient_of_output());
  });
}

Tensor scalar(double value, const Device& device) {
  return Tensor::full({1}, value, DType::f64, device);
}

}  // namespace

TEST_CASE("gradients of an input used twice add up and do not change those of another input") {
  const Device device = Device::cpu();
  Tape tape(device);
  const Var x = tape.variable(scalar(3, device)), y = tape.variable(scalar(5, device));
  const Var sum = plus(x, y);          // its one gradient goes to x and y
  const Var square = times(sum, sum);  // 64
  const Var loss = plus(square, x);    // + 3
  tape.backward(loss);
  CHECK(loss.value().item() == 67);
  CHECK(tape.gradient(x).item() == 17);  // 2 * 8 + 1
  CHECK(tape.gradient(y).item() == 16);
}

TEST_CASE("a gradient that two inputs share is not added to in place") {
  const Device device = Device::cpu();
  Tape tape(device);
  const Var x = tape.variable(scalar(3, device)), y = tape.variable(scalar(5, device));
  // Backward adds to x's gradient for `square` after plus(x, y) has given x and y one tensor.
  const Var square = times(x, x);
  tape.backward(plus(square, plus(x, y)));
  CHECK(tape.gradient(x).item() == 7);
  CHECK(tape.gradient(y).item() == 1);
}

TEST_CASE("backward reads a saved slice of a parameter again at the same offset") {
  const Device device = Device::cpu();
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  const Parameter& w = store.add(unit, "w", {3}, Init::normal(1.0f));
  FakeSource source(store, device);
  Tape tape(device, &source);
  const Var x = tape.variable(scalar(2, device));
  Var y;
  double third = 0;
  {
    Tape::Use use(tape, unit);
    const Tensor part = tape.parameter(w).value().slice(2, 3);
    third = part.item();
    y = times(x, Var(part));
  }
  tape.backward(y);
  CHECK(tape.gradient(x).item() == third);
}

TEST_CASE("a loss scale multiplies every gradient") {
  const Device device = Device::cpu();
  Tape tape(device);
  const Var x = tape.variable(scalar(3, device));
  tape.backward(times(x, x), 128.0);
  CHECK(tape.gradient(x).item() == 6 * 128);
}

TEST_CASE("constants and inference record nothing") {
  const Device device = Device::cpu();
  const Var multiplied = times(Var(scalar(2, device)), Var(scalar(3, device)));
  CHECK_FALSE(multiplied.needs_gradient());
  Tape tape(device, nullptr, TapeMode::inference);
  const Var x = tape.variable(scalar(3, device));
  CHECK_FALSE(times(x, x).needs_gradient());
  CHECK_ERROR(TapeError, "inference", tape.backward(times(x, x)));
}

TEST_CASE("backward frees the tensors that ops saved") {
  const Device device = Device::cpu();
  Tape tape(device);
  const Var x = tape.variable(Tensor::full({1}, 2.0, DType::f64, device));
  Var y = x;
  for (int i = 0; i < 10; ++i) y = times(y, x);
  CHECK(device.memory().live() == 11 * arena_granule);
  tape.backward(y);
  // x, y and the gradient of x remain.
  CHECK(device.memory().live() == 3 * arena_granule);
  CHECK(tape.gradient(x).item() == 11 * 1024);
}

TEST_CASE("misuse of a tape is an error that says what to do") {
  const Device device = Device::cpu();
  Tape tape(device), other(device);
  const Var x = tape.variable(scalar(3, device)), z = other.variable(scalar(3, device));
  const Var vector = tape.variable(Tensor::zeros({2}, DType::f64, device));
  CHECK_ERROR(ShapeError, "backward: expected a loss of one element, got [2]",
              tape.backward(vector));
  const std::string two = message_of<TapeError>([&] { times(x, z); });
  for (const char* part : {"times: its inputs belong to two", "detach()", "variable()",
                           "backward(outputs, gradients)"})
    CHECK(contains(two, part));
  CHECK_ERROR(TapeError, "another tape", tape.backward(z));
  CHECK_ERROR(TapeError, "constant", tape.backward(Var(scalar(1, device))));
  CHECK_ERROR(TapeError, "has not run", tape.gradient(x));
  const Var loss = times(x, x);
  tape.backward(loss);
  CHECK_ERROR(TapeError, "backward has already run", tape.backward(loss));
  CHECK_ERROR(TapeError, "times: backward has already run", times(loss, x));
  CHECK_ERROR(TapeError, "only the gradients of variables", tape.gradient(loss));
  CHECK_ERROR(DTypeError, "got i32", other.variable(Tensor::zeros({1}, DType::i32, device)));
}

TEST_CASE(
    "Tape::Use acquires and releases a unit, backward reduces it and acquires it again if it reads "
    "it") {
  const Device device = Device::cpu();
  ParameterStore store;
  const Unit &first = store.unit("first"), &second = store.unit("second");
  const Parameter& w = store.add(first, "w", {1}, Init::normal(1.0f));
  const Parameter& b = store.add(second, "b", {1}, Init::normal(1.0f));
  const Parameter& frozen =
      store.add(first, "frozen", {1}, Init::ones(), {.decay = false, .trainable = false});
  FakeSource source(store, device);
  Tape tape(device, &source);
  const Var x = tape.variable(scalar(2, device));
  Var y;
  double weight = 0;
  {
    Tape::Use use(tape, first);
    weight = tape.parameter(w).value().item();
    y = times(times(x, tape.parameter(w)), tape.parameter(frozen));
  }
  {
    Tape::Use use(tape, second);
    y = plus(y, tape.parameter(b));  // reads no value of `second` in backward
  }
  tape.backward(y);
  const std::vector<std::string> expected = {"acquire first",  "release first", "acquire second",
                                             "release second", "reduce second", "acquire first",
                                             "reduce first",   "release first"};
  CHECK(source.log == expected);
  CHECK(source.gradients[&w] == std::vector<double>{2});
  CHECK(source.gradients[&b] == std::vector<double>{1});
  CHECK(source.gradients.count(&frozen) == 0);
  CHECK(tape.gradient(x).item() == weight);
}

TEST_CASE(
    "the gradient of a unit used twice goes to its source once, after the last backward use") {
  const Device device = Device::cpu();
  ParameterStore store;
  const Unit& unit = store.unit("tied");
  const Parameter& w = store.add(unit, "w", {1}, Init::normal(1.0f));
  for (const bool checkpointed : {false, true}) {
    CAPTURE(checkpointed);
    FakeSource source(store, device);
    Tape tape(device, &source);
    const auto layer = [&](Tape& inner, std::span<const Var> inputs) {
      Tape::Use use(inner, unit);
      return times(inputs[0], inner.parameter(w));
    };
    Var y = tape.variable(scalar(3, device));
    for (int i = 0; i < 2; ++i) {
      const Var input[] = {y};
      y = checkpointed ? checkpoint(tape, input, layer) : layer(tape, input);
    }
    tape.backward(y);
    CHECK(std::ranges::count(source.log, "reduce tied") == 1);
    std::vector<float> start(1);
    initialise(w.init, 1, "w", 0, start);
    CHECK(source.gradients[&w][0] == doctest::Approx(6.0 * start[0]).epsilon(1e-12));
  }
}

TEST_CASE("checkpointing keeps only the inputs and gives the same bits") {
  const Device device = Device::cpu();
  double gradients[2][2];
  int64_t live[2];
  for (const bool checkpointed : {false, true}) {
    Tape tape(device);
    const Var x = tape.variable(scalar(1.1, device)), z = tape.variable(scalar(0.9, device));
    const auto segment = [](Tape&, std::span<const Var> inputs) {
      Var y = inputs[0];
      for (int i = 0; i < 20; ++i) y = times(plus(y, inputs[1]), inputs[0]);
      return y;
    };
    const Var inputs[] = {x, z};
    const Var y = checkpointed ? checkpoint(tape, inputs, segment) : segment(tape, inputs);
    live[checkpointed] = device.memory().live();
    tape.backward(times(y, y));
    gradients[checkpointed][0] = tape.gradient(x).item();
    gradients[checkpointed][1] = tape.gradient(z).item();
  }
  CHECK(gradients[0][0] == gradients[1][0]);
  CHECK(gradients[0][1] == gradients[1][1]);
  CHECK(live[1] == 3 * arena_granule);
  CHECK(live[0] > 20 * arena_granule);
}

TEST_CASE("a Var captured by a checkpointed segment is an error") {
  const Device device = Device::cpu();
  Tape tape(device);
  const Var x = tape.variable(scalar(1.1, device)), captured = tape.variable(scalar(2, device));
  const Var inputs[] = {x};
  CHECK_ERROR(TapeError, "captured by a checkpointed segment",
              checkpoint(tape, inputs,
                         [&](Tape&, std::span<const Var> in) { return times(in[0], captured); }));
  CHECK_ERROR(TapeError, "checkpoint: the segment returns a recorded Var that it captured",
              checkpoint(tape, inputs, [&](Tape&, std::span<const Var>) { return captured; }));
}

TEST_CASE("reading a parameter outside its unit is an error that names the unit to open") {
  const Device device = Device::cpu();
  ParameterStore store;
  const Unit& unit = store.unit("block.0");
  const Parameter& w = store.add(unit, "w", {1}, Init::ones());
  FakeSource source(store, device);
  Tape tape(device, &source);
  CHECK_ERROR(NotResident, "unit 'block.0'", tape.parameter(w));
  Var late;
  {
    Tape::Use use(tape, unit);
    late = tape.parameter(w);
  }
  CHECK_ERROR(NotResident, "block.0", late.value());
  Tape without(device);
  CHECK_ERROR(TapeError, "ParameterSource", Tape::Use use(without, unit));
}

TEST_CASE("after an exception inside Tape::Use the unit is released and backward throws") {
  const Device device = Device::cpu();
  ParameterStore store;
  const Unit& unit = store.unit("block.0");
  store.add(unit, "w", {1}, Init::ones());
  FakeSource source(store, device);
  Tape tape(device, &source);
  const Var x = tape.variable(scalar(1, device));
  try {
    Tape::Use use(tape, unit);
    throw ShapeError("from the model");
  } catch (const ShapeError&) {
  }
  CHECK(source.log == std::vector<std::string>{"acquire block.0", "release block.0"});
  CHECK_ERROR(TapeError, "an exception passed", tape.backward(x));
}

TEST_CASE("a unit whose results do not reach the loss still goes to its source once in backward") {
  const Device device = Device::cpu();
  ParameterStore store;
  const Unit& unit = store.unit("aside");
  const Parameter& w = store.add(unit, "w", {1}, Init::ones());
  FakeSource source(store, device);
  Tape tape(device, &source);
  const Var x = tape.variable(scalar(2, device));
  const auto segment = [&](Tape& inner, std::span<const Var> inputs) {
    const Tape::Use use(inner, unit);
    return times(inputs[0], inner.parameter(w));
  };
  const Var inputs[] = {x};
  const Var aside = checkpoint(tape, inputs, segment);
  tape.backward(times(x, x));
  CHECK(aside.value().item() == 2);
  CHECK(std::ranges::count(source.log, "reduce aside") == 1);
}

TEST_CASE("a checkpointed segment can read a unit that was opened outside it") {
  const Device device = Device::cpu();
  ParameterStore store;
  const Unit& unit = store.unit("around");
  const Parameter& w = store.add(unit, "w", {1}, Init::normal(1.0f));
  FakeSource source(store, device);
  Tape tape(device, &source);
  const Var x = tape.variable(scalar(2, device));
  Var y;
  double weight = 0;
  {
    const Tape::Use use(tape, unit);
    weight = tape.parameter(w).value().item();
    const Var inputs[] = {x};
    y = checkpoint(tape, inputs, [&](Tape& inner, std::span<const Var> in) {
      return times(in[0], inner.parameter(w));
    });
  }
  tape.backward(y);
  CHECK(tape.gradient(x).item() == weight);
  CHECK(source.gradients[&w] == std::vector<double>{2});
  CHECK(std::ranges::count(source.log, "acquire around") == 2);
}

TEST_CASE("a tensor that is changed between forward and backward is an error if an op saved it") {
  const Device device = Device::cpu();
  Stream& stream = device.compute();
  const Tensor seven = scalar(7, device);
  const auto backward_after = [&](const auto& change) {
    Tape tape(device);
    const Tensor values = scalar(3, device);
    const Var x = tape.variable(values);
    const Var loss = times(x, x);
    change(values);
    return message_of<TapeError>([&] { tape.backward(loss); });
  };
  const std::function<void(const Tensor&)> changes[] = {
      [&](const Tensor& t) { copy(seven, t, stream); },
      [&](const Tensor& t) { fill_zero(t.flat(0, 1), stream); },
      [&](const Tensor& t) { kernels::axpby({.x = seven, .y = t, .a = 1.0, .b = 1.0}, stream); }};
  for (const auto& change : changes)
    CHECK(contains(backward_after(change),
                   "times: backward needs the tensor [1] f64 as it was in forward, but it was "
                   "changed in place since (changes: 1)"));
  // After a change, an op that saved nothing throws no error. Reading a tensor does not change it.
  Tape tape(device);
  const Tensor values = scalar(3, device);
  const Var x = tape.variable(values);
  const Var loss = plus(x, x);
  copy(seven, values, stream);
  tape.backward(loss);
  CHECK(tape.gradient(x).item() == 2);
  CHECK(backward_after([](const Tensor& t) { t.item(); }) == "nothing was thrown");
}

TEST_CASE("an op that mixes a gradient with a recorded value is an error, unless it is detached") {
  const Device device = Device::cpu();
  Tape first(device);
  const Var x = first.variable(scalar(3, device));
  first.backward(times(x, x));
  const Tensor gradient = first.gradient(x);
  Tape tape(device);
  const Var y = tape.variable(scalar(2, device));
  const Var penalty = times(gradient, gradient);  // a constant by itself
  CHECK_ERROR(TapeError, "constant", tape.backward(penalty));
  for (const Var& derivative : {Var(gradient), penalty})
    CHECK_ERROR(TapeError, "plus: one input was computed from a gradient that backward returned",
                plus(times(y, y), derivative));
  tape.backward(plus(times(y, y), detach(penalty)));
  CHECK(tape.gradient(y).item() == 4);
  // An update by ops gives ordinary values.
  const Tensor updated = plus(Var(scalar(1, device)), gradient).value();
  Tape next(device);
  const Var z = next.variable(scalar(2, device));
  next.backward(times(z, updated));
  CHECK(next.gradient(z).item() == 7);
}

TEST_CASE("units and parameters are identified by their address and cannot be copied") {
  CHECK(!std::is_copy_constructible_v<Unit>);
  CHECK(!std::is_copy_constructible_v<Parameter>);
  CHECK(!std::is_copy_assignable_v<Unit>);
  CHECK(!std::is_copy_assignable_v<Parameter>);
}

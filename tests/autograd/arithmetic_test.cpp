#include <cmath>

#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct BinaryOperation {
  const char* name;
  Var (*op)(const Var&, const Var&);
  double (*value)(double, double);
};

const BinaryOperation binary_operations[] = {
    {"add", add, [](double a, double b) { return a + b; }},
    {"sub", sub, [](double a, double b) { return a - b; }},
    {"mul", mul, [](double a, double b) { return a * b; }},
    {"div", div, [](double a, double b) { return a / b; }},
    {"pow", pow, [](double a, double b) { return std::pow(a, b); }},
    {"maximum", maximum, [](double a, double b) { return std::fmax(a, b); }},
    {"minimum", minimum, [](double a, double b) { return std::fmin(a, b); }},
};

struct OperandShapes {
  Shape a, b;
};
const OperandShapes operand_shapes[] = {{{3, 5}, {3, 5}},    {{3, 1, 5}, {4, 1}},
                                        {{}, {2, 3}},        {{5}, {2, 3, 5}},
                                        {{1, 1, 7}, {7}},    {{2, 3, 1, 2, 1, 3}, {2, 4, 1}},
                                        {{31, 1}, {1, 1, 3}}};

}  // namespace

TEST_CASE("binary arithmetic ops broadcast and match plain loops") {
  for (const BinaryOperation& operation : binary_operations)
    for (const OperandShapes& pair : operand_shapes) {
      CAPTURE(operation.name);
      const Tensor a = doubles(pair.a, 1, 0.5, 2.0), b = doubles(pair.b, 2, 0.5, 2.0);
      const Tensor y = operation.op(Var(a), Var(b)).value();
      CHECK(y.shape() == broadcast(pair.a, pair.b, "test"));
      std::vector<double> expected;
      for (int64_t i = 0; i < y.numel(); ++i)
        expected.push_back(operation.value(a.to_doubles()[source_of(i, y.shape(), pair.a)],
                                           b.to_doubles()[source_of(i, y.shape(), pair.b)]));
      CHECK(excess(y, expected, 0.0, 4 * unit_roundoff(DType::f64)) <= 1.0);
    }
}

TEST_CASE("binary arithmetic ops pass gradcheck whichever operand is broadcast") {
  for (const BinaryOperation& operation : binary_operations)
    for (const OperandShapes& pair : operand_shapes) {
      CAPTURE(operation.name);
      check_gradient([&](Tape&, Vars in) { return operation.op(in[0], in[1]); },
                     {doubles(pair.a, 1, 0.5, 2.0), doubles(pair.b, 2, 0.5, 2.0)});
    }
}

TEST_CASE(
    "binary arithmetic ops pass gradcheck with a constant operand and with one operand on both "
    "sides") {
  const Var fixed(doubles({4, 1}, 3, 0.5, 2.0));
  for (const BinaryOperation& operation : binary_operations) {
    CAPTURE(operation.name);
    check_gradient([&](Tape&, Vars in) { return operation.op(in[0], fixed); },
                   {doubles({3, 1, 5}, 1, 0.5, 2.0)});
    check_gradient([&](Tape&, Vars in) { return operation.op(fixed, in[0]); },
                   {doubles({3, 1, 5}, 1, 0.5, 2.0)});
    check_gradient([&](Tape&, Vars in) { return operation.op(in[0], in[0]); },
                   {doubles({5}, 1, 0.5, 2.0)});
  }
}

TEST_CASE("add, mul and pow with a number and neg have the right values and gradients") {
  const Tensor x = doubles({3, 5}, 1, 0.5, 2.0);
  const std::vector<double> values = x.to_doubles();
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK(values_of(add(Var(x), 2.5))[i] == values[i] + 2.5);
    CHECK(values_of(mul(Var(x), -0.3))[i] == values[i] * -0.3);
    CHECK(values_of(pow(Var(x), 3.0))[i] == doctest::Approx(std::pow(values[i], 3.0)));
    CHECK(values_of(neg(Var(x)))[i] == -values[i]);
    CHECK(values_of(maximum(Var(x), 1.2))[i] == std::fmax(values[i], 1.2));
    CHECK(values_of(minimum(Var(x), 1.2))[i] == std::fmin(values[i], 1.2));
    CHECK(values_of(logaddexp(Var(x), 1.2))[i] ==
          doctest::Approx(std::log(std::exp(values[i]) + std::exp(1.2))));
  }
  check_gradient([](Tape&, Vars in) { return add(in[0], 2.5); }, {x});
  check_gradient([](Tape&, Vars in) { return mul(in[0], -0.3); }, {x});
  check_gradient([](Tape&, Vars in) { return pow(in[0], 3.0); }, {x});
  check_gradient([](Tape&, Vars in) { return pow(in[0], -0.5); }, {x});
  check_gradient([](Tape&, Vars in) { return neg(in[0]); }, {x});
}

TEST_CASE("the overloaded arithmetic operators equal add, sub, mul, div and neg") {
  const Tensor a = doubles({3, 1, 5}, 1, 0.5, 2.0), b = doubles({4, 1}, 2, 0.5, 2.0);
  const Var x(a), y(b);
  struct Signed {
    const char* sign;
    Var by_sign, by_name;
  };
  const Signed cases[] = {{"x + y", x + y, add(x, y)},
                          {"x - y", x - y, sub(x, y)},
                          {"x * y", x * y, mul(x, y)},
                          {"x / y", x / y, div(x, y)},
                          {"-x", -x, neg(x)},
                          {"x + 2", x + 2, add(x, 2.0)},
                          {"2 + x", 2 + x, add(x, 2.0)},
                          {"x - 2", x - 2, add(x, -2.0)},
                          {"2 - x", 2 - x, add(neg(x), 2.0)},
                          {"x * 3", x * 3, mul(x, 3.0)},
                          {"3 * x", 3 * x, mul(x, 3.0)},
                          {"x / 4", x / 4, mul(x, 0.25)},
                          {"4 / x", 4 / x, mul(pow(x, -1.0), 4.0)},
                          {"tensor + x", a + x, add(x, x)},
                          {"x * tensor", y * b, mul(y, y)},
                          {"tensor / tensor", Var(a) / b, div(x, y)}};
  for (const Signed& c : cases) {
    CAPTURE(c.sign);
    CHECK(c.by_sign.shape() == c.by_name.shape());
    CHECK(excess(c.by_sign.value(), values_of(c.by_name), 0.0, 4 * unit_roundoff(DType::f64)) <=
          1.0);
  }
  Var sum = x;
  sum += y;
  sum *= 2;
  sum -= x;
  sum /= y;
  sum += 1;
  sum -= 3;
  sum *= x;
  sum /= 2;
  CHECK(excess(sum.value(), values_of(((x + y) * 2 - x) / y * x / 2 - x), 0.0,
               32 * unit_roundoff(DType::f64)) <= 1.0);
}

TEST_CASE("comparison operators accept a tensor or a number on either side") {
  const Var x(Tensor::from(std::vector<float>{1, 2, 3}, {3}, shared_device()));
  const Var y(Tensor::from(std::vector<float>{3, 2, 1}, {3}, shared_device()));
  using Bools = std::vector<bool>;
  const auto bools = [](const Var& v) { return v.value().to_host<bool>(); };
  CHECK(bools(x == y) == Bools{false, true, false});
  CHECK(bools(x != y) == Bools{true, false, true});
  CHECK(bools(x < y) == Bools{true, false, false});
  CHECK(bools(x <= y) == Bools{true, true, false});
  CHECK(bools(x > y) == Bools{false, false, true});
  CHECK(bools(x >= y) == Bools{false, true, true});
  for (const auto& [left, right] : {std::pair{x == 2, 2 == x}, {x != 2, 2 != x}}) {
    CHECK(bools(left) == bools(right));
    CHECK(bools(left)[1] != bools(left)[0]);
  }
  CHECK(bools(x < 2) == Bools{true, false, false});
  CHECK(bools(x <= 2) == Bools{true, true, false});
  CHECK(bools(x > 2) == Bools{false, false, true});
  CHECK(bools(x >= 2) == Bools{false, true, true});
  CHECK(bools(2 < x) == Bools{false, false, true});
  CHECK(bools(2 <= x) == Bools{false, true, true});
  CHECK(bools(2 > x) == Bools{true, false, false});
  CHECK(bools(2 >= x) == Bools{true, true, false});
}

TEST_CASE("overloaded arithmetic operators pass gradcheck with a number on either side") {
  const std::vector<Tensor> x = {doubles({3, 5}, 1, 0.5, 2.0)};
  check_gradient([](Tape&, Vars in) { return 2 - in[0]; }, x);
  check_gradient([](Tape&, Vars in) { return in[0] / 3; }, x);
  check_gradient([](Tape&, Vars in) { return 3 / in[0]; }, x);
  check_gradient([](Tape&, Vars in) { return (1 - in[0]) * in[0] / (1 + in[0]); }, x);
}

TEST_CASE("an op of an integer tensor and a fractional number is refused, not rounded") {
  const Var k(Tensor::from(std::vector<int64_t>{7, -7, 4}, {3}, shared_device()));
  CHECK((k < 5.0).value().to_host<bool>() == std::vector<bool>{false, true, true});
  CHECK_THROWS_AS(k < 4.5, DTypeError);
  CHECK_THROWS_AS(k == 0.5, DTypeError);
  CHECK_THROWS_AS(k + 0.5, DTypeError);
  CHECK_ERROR(DTypeError, "sub: got the number 0.5 for an operand of i64 [3]", k - 0.5);
  CHECK_THROWS_AS(k * 1.5, DTypeError);
  CHECK_THROWS_AS(k / 0.5, DTypeError);
  CHECK_THROWS_AS(1.5 / k, DTypeError);
}

TEST_CASE("integer division with a number truncates toward zero and refuses the divisor 0") {
  const Var x(Tensor::from(std::vector<int64_t>{7, -7, 6}, {3}, shared_device()));
  CHECK((x / 2).value().to_host<int64_t>() == std::vector<int64_t>{3, -3, 3});
  CHECK((42 / x).value().to_host<int64_t>() == std::vector<int64_t>{6, -6, 7});
  CHECK_ERROR(ConfigError, "0", x / 0);
}

TEST_CASE("operators with numbers have the same peak memory on a meta device as on the CPU") {
  const auto peak = [](const Device& device) {
    Tape tape(device);
    const Var x = tape.variable(Tensor::full({64, 32}, 0.5, DType::bf16, device));
    tape.backward(sum((2 - x) / 3 * x + 1 / (x + 2)));
    return device.memory().peak();
  };
  CHECK(peak(Device::cpu(0, {.threads = 1})) == peak(Device::meta(0, {.threads = 1})));
}

TEST_CASE("mul does not round a scalar factor to bf16 before it multiplies") {
  const Device device = Device::cpu();
  const Var x(Tensor::full({1}, 3.0, DType::bf16, device));
  // 0.99 rounds to 0.98828125, but 3 * bf16(0.33) = 0.990234375 would round to 0.9921875.
  CHECK(mul(x, 0.33).value().item() == static_cast<double>(bf16(0.99f)));
}

TEST_CASE("maximum and minimum split the gradient evenly between equal operands") {
  const Device device = Device::cpu();
  for (auto op : {static_cast<Var (*)(const Var&, const Var&)>(maximum),
                  static_cast<Var (*)(const Var&, const Var&)>(minimum)}) {
    Tape tape(device);
    const Var a = tape.variable(Tensor::full({3}, 2.0, DType::f64, device));
    const Var b = tape.variable(Tensor::full({3}, 2.0, DType::f64, device));
    tape.backward(sum(op(a, b)));
    CHECK(tape.gradient(a).to_doubles() == std::vector<double>{0.5, 0.5, 0.5});
    CHECK(tape.gradient(b).to_doubles() == std::vector<double>{0.5, 0.5, 0.5});
  }
}

TEST_CASE("constant integer tensors can be added, multiplied by a number, negated and compared") {
  const Device device = Device::cpu();
  const Var a(Tensor::from(std::vector<int64_t>{1, 2, 3}, {3}, device));
  const Var b(Tensor::from(std::vector<int64_t>{3, 2, 1}, {3}, device));
  CHECK(add(a, b).value().to_host<int64_t>() == std::vector<int64_t>{4, 4, 4});
  CHECK(mul(a, 2.0).value().to_host<int64_t>() == std::vector<int64_t>{2, 4, 6});
  CHECK(neg(a).value().to_host<int64_t>() == std::vector<int64_t>{-1, -2, -3});
  CHECK(equal(a, b).value().to_host<bool>() == std::vector<bool>{false, true, false});
  CHECK(not_equal(a, b).value().to_host<bool>() == std::vector<bool>{true, false, true});
  CHECK(less(a, b).value().to_host<bool>() == std::vector<bool>{true, false, false});
  CHECK(less_equal(a, b).value().to_host<bool>() == std::vector<bool>{true, true, false});
  CHECK(greater(a, b).value().to_host<bool>() == std::vector<bool>{false, false, true});
  CHECK(greater_equal(a, b).value().to_host<bool>() == std::vector<bool>{false, true, true});
}

TEST_CASE("comparisons broadcast and take no gradient") {
  const Device device = Device::cpu();
  Tape tape(device);
  const Var x = tape.variable(Tensor::from(std::vector<double>{-1, 0, 1}, {3}, device));
  const Var positive = greater(x, Var(Tensor::zeros({2, 1}, DType::f64, device)));
  CHECK(positive.shape() == Shape{2, 3});
  CHECK(positive.dtype() == DType::boolean);
  CHECK_FALSE(positive.needs_gradient());
}

TEST_CASE("where selects elements and sends each gradient to the selected operand") {
  const Var condition(greater(Var(doubles({3, 1}, 3)), Var(doubles({}, 4, 0.0, 0.1))));
  const Tensor a = doubles({2, 1, 5}, 1), b = doubles({5}, 2);
  const Tensor y = where(condition, Var(a), Var(b)).value();
  CHECK(y.shape() == Shape{2, 3, 5});
  const std::vector<bool> chosen = condition.value().to_host<bool>();
  for (int64_t i = 0; i < y.numel(); ++i) {
    const bool first = chosen[source_of(i, y.shape(), {3, 1})];
    CHECK(y.to_doubles()[static_cast<size_t>(i)] ==
          (first ? a.to_doubles()[source_of(i, y.shape(), a.shape())]
                 : b.to_doubles()[source_of(i, y.shape(), b.shape())]));
  }
  check_gradient([&](Tape&, Vars in) { return where(condition, in[0], in[1]); }, {a, b});
  check_gradient([&](Tape&, Vars in) { return where(condition, in[0], Var(b)); }, {a});
  check_gradient([&](Tape&, Vars in) { return where(condition, Var(a), in[0]); }, {b});
}

TEST_CASE("arithmetic ops refuse absent operands and wrong shapes, dtypes and devices") {
  const Device device = Device::cpu(), other = Device::cpu(1);
  const Var a(Tensor::zeros({2, 3}, DType::f32, device));
  const Var narrow(Tensor::zeros({2, 3}, DType::bf16, device));
  const Var wide(Tensor::zeros({2, 4}, DType::f32, device));
  const Var flag(Tensor::zeros({2, 3}, DType::boolean, device));
  const Var whole(Tensor::zeros({2, 3}, DType::i32, device));
  const Var elsewhere(Tensor::zeros({2, 3}, DType::f32, other));
  for (const BinaryOperation& operation : binary_operations) {
    const std::string name = operation.name;
    CHECK_ERROR(ShapeError, name + ": cannot broadcast [2, 3] with [2, 4]", operation.op(a, wide));
    CHECK_ERROR(DTypeError, name + ": a holds f32 and b holds bf16; expected one dtype; try cast",
                operation.op(a, narrow));
    CHECK_ERROR(DTypeError, name + ": a holds bool; expected f64", operation.op(flag, flag));
    CHECK_ERROR(ShapeError, name + ": b is absent; expected a tensor", operation.op(a, Var()));
    CHECK_ERROR(DeviceError,
                name + ": tensors on two devices, cpu:0 and cpu:1; copy one over first",
                operation.op(a, elsewhere));
  }
  CHECK_ERROR(DTypeError, "pow: a holds i32; expected", pow(whole, whole));
  CHECK_ERROR(ShapeError, "neg: x is absent", neg(Var()));
  CHECK_ERROR(DTypeError, "where: condition holds f32; expected bool", where(a, a, a));
  CHECK_ERROR(DTypeError, "where: a holds f32 and b holds bf16", where(flag, a, narrow));
  CHECK_ERROR(ShapeError, "where: cannot broadcast", where(flag, wide, wide));
  CHECK_ERROR(ShapeError, "less: cannot broadcast", less(a, wide));
  CHECK_ERROR(DTypeError, "expected a whole number", add(whole, 0.5));
  for (const double number : {3e9, -2147483649.0, double{INFINITY}, double{NAN}})
    CHECK_ERROR(DTypeError, "add: got the number", add(whole, number));
  CHECK(message_of<DTypeError>([&] { add(whole, -2147483648.0); }) == "nothing was thrown");
}

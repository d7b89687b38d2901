#include <cmath>
#include <numbers>

#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct UnaryOperation {
  const char* name;
  Var (*op)(const Var&);
  double (*value)(double);
  double low;  // inputs are in [low, 3]
};

double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }

const UnaryOperation unary_operations[] = {
    {"exp", exp, [](double x) { return std::exp(x); }, -3},
    {"log", log, [](double x) { return std::log(x); }, 0.2},
    {"sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0.2},
    {"tanh", tanh, [](double x) { return std::tanh(x); }, -3},
    {"sigmoid", sigmoid, sigmoid_of, -3},
    {"relu", relu, [](double x) { return x > 0 ? x : 0; }, -3},
    {"silu", silu, [](double x) { return x * sigmoid_of(x); }, -3},
    {"sin", sin, [](double x) { return std::sin(x); }, -3},
    {"cos", cos, [](double x) { return std::cos(x); }, -3},
    {"erf", erf, [](double x) { return std::erf(x); }, -3},
    {"log1p", log1p, [](double x) { return std::log1p(x); }, -0.75},
    {"gelu", [](const Var& x) { return gelu(x); },
     [](double x) {
       return 0.5 * x *
              (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
     },
     -3},
    {"gelu", [](const Var& x) { return gelu(x, Activation::gelu_erf); },
     [](double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }, -3},
};

}  // namespace

TEST_CASE("unary ops match the C library") {
  for (const UnaryOperation& operation : unary_operations)
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{31}, Shape{3, 1, 11}}) {
      CAPTURE(operation.name);
      const Tensor x = doubles(shape, 1, operation.low, 3.0);
      std::vector<double> expected;
      for (double value : x.to_doubles()) expected.push_back(operation.value(value));
      // A few roundings of values up to 20.
      CHECK(excess(operation.op(Var(x)).value(), expected, 1e-14, 1e-14) <= 1.0);
    }
}

TEST_CASE("unary ops refuse dtypes that are not floating-point and suggest a cast") {
  const Device device = Device::cpu();
  const Var whole(Tensor::zeros({3}, DType::i32, device));
  for (const UnaryOperation& operation : unary_operations) {
    const std::string name = operation.name;
    CHECK(message_of<DTypeError>([&] { operation.op(whole); }) ==
          name + ": x holds i32; expected f64, f32, bf16 or f16; try cast(x, DType::f32)");
    CHECK_ERROR(ShapeError, name + ": x is absent", operation.op(Var()));
  }
  const Var x(Tensor::zeros({3}, DType::f32, device));
  CHECK_ERROR(ConfigError, "gelu: the form is none; expected gelu_tanh or gelu_erf",
              gelu(x, Activation::none));
}

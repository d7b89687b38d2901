#include <cmath>
#include <numbers>
#include <set>

#include "tests/autograd/op_check.h"
#include "tests/support/unary_functions.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct UnaryOperation {
  const char* name;
  Var (*op)(const Var&);
  UnaryFunction expected;
};

Var negate(const Var& x) { return neg(x); }
Var clamp(const Var& x) { return zg::clamp(x, unary_p, unary_q); }
Var elu(const Var& x) { return zg::elu(x, unary_p); }
Var leaky_relu(const Var& x) { return zg::leaky_relu(x, unary_p); }

const std::vector<UnaryOperation>& unary_operations() {
  static const std::vector<UnaryOperation> all = [] {
    std::vector<UnaryOperation> found;
#define ZG_UNARY(name, ...) found.push_back({#name, name, unary_functions[found.size()]});
#include "zerograd/kernels/elementwise/formulas.inc"
    found.front().name = "neg";
    found.push_back({"gelu", [](const Var& x) { return gelu(x); }, {[](double x) {
                       const double cubic = x + 0.044715 * x * x * x;
                       return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * cubic));
                     }}});
    found.push_back({"gelu",
                     [](const Var& x) { return gelu(x, Activation::gelu_erf); },
                     {[](double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }}});
    return found;
  }();
  return all;
}

}  // namespace

TEST_CASE("unary ops match the C library") {
  for (const UnaryOperation& operation : unary_operations())
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{31}, Shape{3, 1, 11}}) {
      CAPTURE(operation.name);
      const Tensor x = doubles(shape, 1, operation.expected.low, operation.expected.high);
      std::vector<double> expected;
      for (double value : x.to_doubles()) expected.push_back(operation.expected.value(value));
      // A few roundings of values up to 20.
      CHECK(excess(operation.op(Var(x)).value(), expected, 1e-14, 1e-14) <= 1.0);
    }
}

TEST_CASE("gradients by other ops are those of backward at 0, at ties and for NaN") {
  const std::vector<double> edges = {0, -0.0, 1, 1, -1, 2, -3, NAN};
  std::vector<double> left, right;
  for (const double a : edges)
    for (const double b : edges) left.push_back(a), right.push_back(b);
  const Tensor a = Tensor::from(left, {8, 8}, shared_device());
  const Tensor b = Tensor::from(right, {8, 8}, shared_device());
  const std::pair<const char*, Var (*)(const Var&, const Var&)> rows[] = {
      {"div", div},
      {"pow", pow},
      {"remainder", remainder},
      {"maximum", maximum},
      {"minimum", minimum},
      {"where", [](auto& x, auto& y) { return where(x < y, x, y); }},
      {"max", [](auto& x, auto& y) { return max(x, 1) + max(y, 1); }},
      {"min", [](auto& x, auto& y) { return min(x, 0) + min(y, 0); }},
      {"std", [](auto& x, auto& y) { return zg::std(x, 1) + zg::std(y, 0); }},
      {"norm", [](auto& x, auto& y) { return norm(x, 2, 1) + norm(y, INFINITY, 1); }},
      {"clamp", [](auto& x, auto& y) { return clamp(x, -1, 1) * clamp(y, 0, 2); }}};
  for (const auto& [name, op] : rows) {
    CAPTURE(name);
    check_composed([&](Tape&, Vars in) { return op(in[0], in[1]); }, {a, b});
  }
  for (const UnaryOperation& operation : unary_operations()) {
    CAPTURE(operation.name);
    check_composed([&](Tape&, Vars in) { return operation.op(in[0]); }, {a});
  }
}

TEST_CASE("the slope of clamp is 0 at a limit that its dtype rounds") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const double limit : {0.1, 0.3, 1.0 / 3, -0.1, -0.3, -1.0 / 3}) {
      INFO(name_of(dtype), " ", limit);
      for (const auto& [low, high] : {std::pair{limit, 2.0}, {-2.0, limit}, {limit, limit}}) {
        Tape tape(shared_device());
        const Var x = tape.variable(Tensor::full({}, limit, dtype, shared_device()));
        const Var y = zg::clamp(x, low, high);
        CHECK(values_of(y) == values_of(x));
        CHECK(grad(y, x).value().item() == 0.0);
      }
    }
}

TEST_CASE("unary ops refuse dtypes that are not floating-point and suggest a cast") {
  const Device device = Device::cpu();
  const Var whole(Tensor::zeros({3}, DType::i32, device));
  for (const UnaryOperation& operation : unary_operations()) {
    const std::string name = operation.name;
    if (!std::set<std::string>{"neg", "abs", "relu", "sign", "square", "clamp"}.contains(name))
      CHECK(message_of<DTypeError>([&] { operation.op(whole); }) ==
            name + ": x holds i32; expected f64, f32, bf16 or f16; try cast(x, DType::f32)");
    CHECK_ERROR(ShapeError, name + ": x is absent", operation.op(Var()));
  }
  const Var x(Tensor::zeros({3}, DType::f32, device));
  CHECK_ERROR(ConfigError, "gelu: the form is none; expected gelu_tanh or gelu_erf",
              gelu(x, Activation::none));
}

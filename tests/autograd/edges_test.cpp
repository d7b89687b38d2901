#include <cfloat>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/autograd/op_check.h"

// Element-wise ops at NaN, infinities, zeros, subnormal and largest numbers, and at limits, beside
// PyTorch's: tests/reference/make_edge_fixtures.py.
using namespace zg;
using namespace zg::testing;

namespace {

using OpAtEdges = Var (*)(const Var&, const Var&);

/// The script's functions, by their names there.
const std::map<std::string, OpAtEdges>& ops_at_edges() {
#define ZG_ONE(name, ...)                                             \
  {                                                                   \
    name, [](const Var& x, const Var&) -> Var { return __VA_ARGS__; } \
  }
#define ZG_TWO(name, ...)                                               \
  {                                                                     \
    name, [](const Var& a, const Var& b) -> Var { return __VA_ARGS__; } \
  }
  static const std::map<std::string, OpAtEdges> all = {
      ZG_ONE("neg", -x),
      ZG_ONE("exp", exp(x)),
      ZG_ONE("log", log(x)),
      ZG_ONE("sqrt", sqrt(x)),
      ZG_ONE("tanh", tanh(x)),
      ZG_ONE("sigmoid", sigmoid(x)),
      ZG_ONE("relu", relu(x)),
      ZG_ONE("silu", silu(x)),
      ZG_ONE("abs", abs(x)),
      ZG_ONE("reciprocal", reciprocal(x)),
      ZG_ONE("sin", sin(x)),
      ZG_ONE("cos", cos(x)),
      ZG_ONE("erf", erf(x)),
      ZG_ONE("log1p", log1p(x)),
      ZG_ONE("floor", floor(x)),
      ZG_ONE("ceil", ceil(x)),
      ZG_ONE("round", round(x)),
      ZG_ONE("sign", sign(x)),
      ZG_ONE("square", square(x)),
      ZG_ONE("expm1", expm1(x)),
      ZG_ONE("log2", log2(x)),
      ZG_ONE("softplus", softplus(x)),
      ZG_ONE("hard_swish", hard_swish(x)),
      ZG_ONE("tan", tan(x)),
      ZG_ONE("asin", asin(x)),
      ZG_ONE("acos", acos(x)),
      ZG_ONE("atan", atan(x)),
      ZG_ONE("sinh", sinh(x)),
      ZG_ONE("cosh", cosh(x)),
      ZG_ONE("clamp", clamp(x, 0.25, 1.5)),
      ZG_ONE("elu", elu(x, 0.25)),
      ZG_ONE("leaky_relu", leaky_relu(x, 0.25)),
      ZG_ONE("gelu", gelu(x)),
      ZG_ONE("gelu_erf", gelu(x, Activation::gelu_erf)),
      ZG_ONE("rsqrt", rsqrt(x)),
      ZG_ONE("exp2", exp2(x)),
      ZG_ONE("logsigmoid", logsigmoid(x)),
      ZG_ONE("add 1.5", x + 1.5),
      ZG_ONE("1.5 - x", 1.5 - x),
      ZG_ONE("mul 1.5", x * 1.5),
      ZG_ONE("div 1.5", x / 1.5),
      ZG_ONE("1.5 / x", 1.5 / x),
      ZG_ONE("pow 2.5", pow(x, 2.5)),
      ZG_ONE("pow 2", pow(x, 2)),
      ZG_ONE("pow -1", pow(x, -1)),
      ZG_ONE("remainder 1.5", remainder(x, 1.5)),
      ZG_TWO("add", a + b),
      ZG_TWO("sub", a - b),
      ZG_TWO("mul", a * b),
      ZG_TWO("div", a / b),
      ZG_TWO("pow", pow(a, b)),
      ZG_TWO("maximum", maximum(a, b)),
      ZG_TWO("minimum", minimum(a, b)),
      ZG_TWO("logaddexp", logaddexp(a, b)),
      ZG_TWO("remainder", remainder(a, b)),
      ZG_TWO("where", where(a < b, a, b)),
      ZG_TWO("huber", huber(a, b, 1.0, Reduction::none)),
      ZG_TWO("mse", mse(a, b, Reduction::none)),
      ZG_TWO("silu(a) * b", gated(a, b)),
      ZG_TWO("amax", max(stack({a, b}, 0), 0)),
      ZG_TWO("amin", min(stack({a, b}, 0), 0))};
#undef ZG_ONE
#undef ZG_TWO
  return all;
}

std::vector<float> numbers_in(const std::string& text) {
  std::istringstream words(text);
  std::vector<float> numbers;
  for (std::string word; words >> word;) numbers.push_back(std::strtof(word.c_str(), nullptr));
  return numbers;
}

/// Equal but for some roundings. 0 may stand for a subnormal number. `signed_zeros`: -0 is not 0.
void check_at_edges(const Tensor& got, const std::string& text, bool signed_zeros) {
  const std::vector<double> values = got.to_doubles();
  const std::vector<float> expected = numbers_in(text);
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    INFO("element ", i, " is ", values[i], "; expected ", expected[i]);
    CHECK(excess(got.slice(int64_t(i), int64_t(i) + 1), {expected[i]}, FLT_MIN, 2e-5) <= 1);
    if (signed_zeros && expected[i] == 0.0f && values[i] == 0.0)
      CHECK(std::signbit(values[i]) == std::signbit(expected[i]));
  }
}

}  // namespace

TEST_CASE("element-wise ops have PyTorch's values and gradients at edges, at every level") {
  const std::vector<float> edges = numbers_in(
      "nan inf -inf 0 -0 1e-40 -1e-40 3.40282347e38 -3.40282347e38 0.25 1 -1 1.5 2 3 -3 0.5 -0.5 "
      "100 -100");
  std::vector<float> left, right;
  for (size_t i = 0; i < 16; ++i)
    for (size_t j = 0; j < 16; ++j) left.push_back(edges[i]), right.push_back(edges[j]);
  std::ifstream file(ZG_FIXTURES "edges.json");
  const nlohmann::json rows = nlohmann::json::parse(file);
  REQUIRE(rows.size() == ops_at_edges().size());
  for (const Device& device : devices_at_every_level(1))
    for (const nlohmann::json& row : rows) {
      const std::string name = row.at("name");
      const nlohmann::json& gradients = row.at("gradients");
      INFO(name, ", ", level_of(device));
      const bool is_unary = gradients.size() == 1;
      Tape tape(device);
      std::vector<Var> in;
      for (const std::vector<float>& side : {is_unary ? edges : left, right})
        if (in.size() < gradients.size())
          in.push_back(
              tape.variable(Tensor::from(side, {static_cast<int64_t>(side.size())}, device)));
      const Var y = ops_at_edges().at(name)(in.front(), in.back());
      check_at_edges(y.value(), row.at("output"), is_unary);
      const Tensor dy = Tensor::full(y.shape(), 1.0, DType::f32, device);
      const std::vector<Var> by_ops =
          grad({&y, 1}, in, {.create_graph = true, .cotangents = {Var(dy)}});
      tape.backward({&y, 1}, {&dy, 1});
      for (size_t i = 0; i < in.size(); ++i) {
        CAPTURE(i);
        check_at_edges(tape.gradient(in[i]), gradients[i], false);
        check_at_edges(by_ops[i].value(), gradients[i], false);
      }
    }
}

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/autograd/op_check.h"
#include "tests/support/error_message.h"

// Ops that are made of other ops, beside PyTorch's: tests/reference/make_composed_fixtures.py.
using namespace zg;
using namespace zg::testing;

namespace {

using OpOfInputs = std::function<Var(Vars)>;

const Tensor token_ids = indices({3, 0, 2, 1, 3, 3}, {2, 3});
const Tensor some_ignored = indices({3, -1, 2, -1, 3, 0}, {2, 3});

OpOfInputs smoothed_by(double label_smoothing, Reduction reduction) {
  return [=](Vars in) {
    return cross_entropy(in[0], some_ignored,
                         {.label_smoothing = label_smoothing, .reduction = reduction});
  };
}

const std::map<std::string, OpOfInputs>& composed_ops() {
  using enum Reduction;
  static const std::map<std::string, OpOfInputs> all = {
      {"min", [](Vars in) { return min(in[0], {1}); }},
      {"var", [](Vars in) { return var(in[0], {1}); }},
      {"logsumexp", [](Vars in) { return logsumexp(in[0], {1}); }},
      {"rsqrt", [](Vars in) { return rsqrt(in[0]); }},
      {"clamp", [](Vars in) { return clamp(in[0], -1.0, 0.5); }},
      {"masked_fill",
       [](Vars in) {
         const Var mask = greater(detach(in[0]), 0.0);
         return masked_fill(in[0], mask, 7.0);
       }},
      {"transpose", [](Vars in) { return transpose(in[0], 0, 2); }},
      {"stack", [](Vars in) { return stack(in, 1); }},
      {"repeat",
       [](Vars in) {
         return repeat(in[0], {2, 3});
       }},
      {"tril", [](Vars in) { return tril(in[0], 1); }},
      {"triu", [](Vars in) { return triu(in[0], -1); }},
      {"pad", [](Vars in) { return pad(in[0], -1, 2, 1, 0.5); }},
      {"cumsum", [](Vars in) { return cumsum(in[0], 1); }},
      {"sort", [](Vars in) { return sort(in[0], 1).values; }},
      {"cummax", [](Vars in) { return cummax(in[0], 0).values; }},
      {"linear recurrence",
       [](Vars in) {
         return scan({in[0], in[1]}, 1, [](Vars a, Vars b) -> std::vector<Var> {
           const Var carried = b[0] * a[1];
           return {a[0] * b[0], carried + b[1]};
         })[1];
       }},
      {"slice with steps",
       [](Vars in) {
         return slice(in[0], {{.begin = -3}, {.step = -2}});
       }},
      {"slice_scatter",
       [](Vars in) {
         return slice_scatter(in[0], in[1], {{}, {.begin = 1, .step = 2}});
       }},
      {"index_add",
       [](Vars in) {
         return index_add(in[0], 1, indices({3, 0, 3}, {3}), in[1]);
       }},
      {"masked_select", [](Vars in) { return masked_select(in[0], greater(detach(in[1]), 0.0)); }},
      {"topk", [](Vars in) { return topk(in[0], 3, 1).values; }},
      {"topk, smallest", [](Vars in) { return topk(in[0], 4, -1, /*largest=*/false).values; }},
      {"one_hot", [](Vars in) { return mul(in[0], Var(one_hot(token_ids, 4, DType::f64))); }},
      {"cross_entropy, sum", smoothed_by(0.0, sum)},
      {"cross_entropy, none", smoothed_by(0.0, none)},
      {"cross_entropy, smoothed", smoothed_by(0.2, mean)},
      {"cross_entropy, smoothed, none", smoothed_by(0.2, none)},
      {"binary_cross_entropy", [](Vars in) { return binary_cross_entropy(in[0], in[1]); }},
      {"binary_cross_entropy, none",
       [](Vars in) { return binary_cross_entropy(in[0], in[1], none); }},
      {"kl_divergence", [](Vars in) { return kl_divergence(in[0], in[1], sum); }},
      {"kl_divergence, log_target",
       [](Vars in) { return kl_divergence(in[0], in[1], mean, /*log_target=*/true); }},
      {"mse, sum", [](Vars in) { return mse(in[0], in[1], sum); }},
      {"exp2", [](Vars in) { return exp2(in[0]); }},
      {"logsigmoid", [](Vars in) { return logsigmoid(in[0]); }},
      {"elu", [](Vars in) { return elu(in[0], 0.7); }},
      {"leaky_relu", [](Vars in) { return leaky_relu(in[0], 0.2); }},
      {"logaddexp", [](Vars in) { return logaddexp(in[0], in[1]); }},
      {"remainder", [](Vars in) { return remainder(in[0], in[1]); }},
      {"std",
       [](Vars in) {
         return zg::std(in[0], {0, 2});
       }},
      {"prod", [](Vars in) { return prod(in[0], {1}); }},
      {"cumprod", [](Vars in) { return cumprod(in[0], 1); }},
      {"logcumsumexp", [](Vars in) { return logcumsumexp(in[0], 0); }},
      {"flip",
       [](Vars in) {
         return flip(in[0], {0, -1});
       }},
      {"roll", [](Vars in) { return roll(in[0], -7, 1); }},
      {"diag", [](Vars in) { return diag(in[0], -2); }},
      {"diag of a matrix", [](Vars in) { return diag(in[0], 1); }},
      {"index_select", [](Vars in) { return index_select(in[0], 1, token_ids.view({6})); }},
      {"take", [](Vars in) { return take(in[0], token_ids); }},
      {"tensordot",
       [](Vars in) {
         return tensordot(in[0], in[1], {0, 2}, {2, 0});
       }},
      {"outer", [](Vars in) { return outer(in[0], in[1]); }},
      {"norm, 1", [](Vars in) { return norm(in[0], 1, {1}); }},
      {"norm, 2",
       [](Vars in) {
         return norm(in[0], 2, {1, 2});
       }},
      {"norm, infinity", [](Vars in) { return norm(in[0], INFINITY, 1, true); }},
      {"dot", [](Vars in) { return dot(in[0], in[1]); }}};
  return all;
}

Tensor recorded_tensor(const nlohmann::json& from) {
  const auto extents = from.at("shape").get<std::vector<int64_t>>();
  return Tensor::from(from.at("values").get<std::vector<double>>(), Shape(std::span(extents)),
                      shared_device());
}

/// The weight of element i in the sum whose gradients are recorded.
double weight_of(size_t i) { return static_cast<double>(static_cast<int>(i * 7 % 5) - 2) / 4.0; }

}  // namespace

TEST_CASE("composed ops and losses have PyTorch's values and gradients") {
  std::ifstream file(ZG_FIXTURES "composed.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  REQUIRE(cases.size() == composed_ops().size() + 9);  // einsum's
  for (const nlohmann::json& c : cases) {
    const std::string name = c.at("name");
    CAPTURE(name);
    Tape tape(shared_device());
    std::vector<Var> inputs;
    for (const nlohmann::json& input : c.at("inputs"))
      inputs.push_back(tape.variable(recorded_tensor(input)));
    const bool is_einsum = name.starts_with("einsum ");
    const Var y = is_einsum ? einsum(name.substr(7), inputs) : composed_ops().at(name)(inputs);
    const Tensor expected = recorded_tensor(c.at("output"));
    CHECK(y.shape().str() == expected.shape().str());
    CHECK(excess(y.value(), expected.to_doubles(), 1e-13) < 1.0);
    std::vector<double> weights(static_cast<size_t>(y.value().numel()), 1.0);
    for (size_t i = 0; weights.size() > 1 && i < weights.size(); ++i) weights[i] = weight_of(i);
    const Tensor dy = Tensor::from(weights, y.shape(), shared_device());
    const std::vector<Var> by_ops =
        grad({&y, 1}, inputs, {.create_graph = true, .cotangents = {dy}});
    tape.backward({&y, 1}, {&dy, 1});
    for (size_t i = 0; i < inputs.size(); ++i)
      if (const nlohmann::json& gradient = c.at("gradients")[i]; !gradient.is_null()) {
        const auto slopes = gradient.get<std::vector<double>>();
        CAPTURE(values_of(by_ops[i]));
        CAPTURE(slopes);
        CHECK(excess(tape.gradient(inputs[i]), slopes, 1e-13) < 1.0);
        CHECK(excess(by_ops[i].value(), slopes, 1e-12) < 1.0);
      }
  }
}

TEST_CASE("losses of bf16 operands are f32, and losses and pad refuse wrong shapes and options") {
  const Var logits = cast(Var(doubles({2, 3, 4}, 1)), DType::bf16);
  const Var target = cast(Var(doubles({2, 3, 4}, 2, 0.0, 1.0)), DType::bf16);
  CHECK(binary_cross_entropy(logits, target).value().dtype() == DType::f32);
  CHECK(kl_divergence(logits, target, Reduction::none).shape() == Shape{2, 3, 4});
  CHECK(cross_entropy(logits, some_ignored, {.reduction = Reduction::none}).shape() == Shape{2, 3});
  const Var other = cast(Var(doubles({2, 4}, 3)), DType::bf16);
  CHECK_ERROR(ShapeError, "binary_cross_entropy: target", binary_cross_entropy(logits, other));
  CHECK_ERROR(ConfigError, "label_smoothing is 1.5; expected a number in [0, 1]",
              cross_entropy(logits, some_ignored, {.label_smoothing = 1.5}));
  CHECK_ERROR(ConfigError, "pad: before is -1", pad(logits, 0, -1, 0));
}

TEST_CASE("a target of 0 adds nothing to kl_divergence, and its gradient is finite") {
  const std::vector<double> p = {0.0, 1.0};
  const Var target(Tensor::from(p, {2}, shared_device()));
  const Var log_p = log(Var(Tensor::from(std::vector<double>{0.25, 0.75}, {2}, shared_device())));
  CHECK(kl_divergence(log_p, target, Reduction::sum).value().item() ==
        doctest::Approx(-std::log(0.75)));
  Tape tape(shared_device());
  const Var watched = tape.variable(target.value());
  tape.backward(kl_divergence(log_p, watched, Reduction::sum));
  CHECK(tape.gradient(watched).to_doubles()[0] == doctest::Approx(-std::log(0.25)));
}

TEST_CASE("arange counts up, randn depends on seed and name, and one_hot marks ids") {
  const Device& device = shared_device();
  CHECK(arange(-1, 3, DType::i32, device).to_host<int32_t>() == std::vector<int32_t>{-1, 0, 1, 2});
  CHECK(arange(0, 3, DType::bf16, device).to_doubles() == std::vector<double>{0, 1, 2});
  CHECK(arange(5, 5, DType::i64, device).numel() == 0);
  CHECK_ERROR(ConfigError, "begin is 2, end is 1", arange(2, 1, DType::f32, device));

  const Tensor normal = randn({4, 250}, 7, "noise", DType::f32, device);
  CHECK(normal.to_doubles() == randn({4, 250}, 7, "noise", DType::f32, device).to_doubles());
  CHECK(normal.to_doubles() != randn({4, 250}, 8, "noise", DType::f32, device).to_doubles());
  CHECK(normal.to_doubles() != randn({4, 250}, 7, "other", DType::f32, device).to_doubles());
  double total = 0.0, squares = 0.0;
  for (const double value : normal.to_doubles()) {
    total += value;
    squares += value * value;
  }
  CHECK(std::abs(total / 1000) < 0.13);  // four standard errors
  CHECK(std::abs(squares / 1000 - 1.0) < 0.18);

  const Tensor hot = one_hot(indices({2, -1, 0, 3}, {2, 2}), 3);
  CHECK(hot.shape() == Shape{2, 2, 3});
  CHECK(hot.dtype() == DType::f32);
  CHECK(hot.to_doubles() == std::vector<double>{0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0});
  CHECK_ERROR(ConfigError, "classes is 0", one_hot(indices({0}, {1}), 0));
}

TEST_CASE("random numbers depend on seed, name and element, and have the distribution asked for") {
  const Device& device = shared_device();
  const auto made = [&](int64_t n, uint64_t seed, const std::string& name) {
    return std::vector{uniform({n}, seed, name, -1, 3, DType::f64, device),
                       bernoulli({n}, 0.25, seed, name, DType::f32, device),
                       randint({n}, -2, 5, seed, name, DType::i32, device),
                       permutation(n, seed, name, device)};
  };
  const std::vector<Tensor> whole = made(4000, 7, "a"), again = made(4000, 7, "a"),
                            short_ones = made(1000, 7, "a"), other = made(4000, 8, "a"),
                            named = made(4000, 7, "b");
  const double low[] = {-1, 0, -2, 0}, high[] = {3, 1, 4, 3999}, mean[] = {1, 0.25, 1, 1999.5},
               error[] = {0.08, 0.03, 0.13, 0};  // four standard errors
  for (size_t i = 0; i < whole.size(); ++i) {
    CAPTURE(i);
    std::vector<double> values = whole[i].to_doubles();
    CHECK(same_bits(whole[i], again[i]));
    if (i < 3) CHECK(same_bits(whole[i].slice(0, 1000), short_ones[i]));
    CHECK(!same_bits(whole[i], other[i]));
    CHECK(!same_bits(whole[i], named[i]));
    CHECK(std::ranges::min(values) >= low[i]);
    CHECK(std::ranges::max(values) <= high[i]);
    CHECK(std::fabs(std::accumulate(values.begin(), values.end(), 0.0) / 4000 - mean[i]) <=
          error[i]);
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
    CHECK(values.size() == std::array<size_t, 4>{4000, 2, 7, 4000}[i]);
  }
  // Values that programs have seen.
  CHECK(randint({4}, 0, 1000, 7, "a", DType::i32, device).to_doubles() ==
        std::vector<double>{855, 931, 116, 890});
  CHECK(permutation(8, 7, "a", device).to_doubles() == std::vector<double>{3, 1, 2, 4, 5, 0, 6, 7});
  CHECK_ERROR(ConfigError, "bernoulli: p is 1.5", bernoulli({1}, 1.5, 1, "", DType::f32, device));
  CHECK_ERROR(ConfigError, "uniform: low is 2, high is 1",
              uniform({1}, 1, "", 2, 1, DType::f32, device));
  CHECK_ERROR(ConfigError, "randint: low is 2, high is 2",
              randint({1}, 2, 2, 1, "", DType::i64, device));
  CHECK_ERROR(DTypeError, "randint: i32 does not hold the numbers 0 to 1099511627775; try",
              randint({1}, 0, int64_t{1} << 40, 1, "", DType::i32, device));
  CHECK_ERROR(DTypeError, "arange: u8 does not hold", arange(250, 257, DType::u8, device));
  CHECK(arange(250, 256, DType::u8, device).numel() == 6);
  CHECK_ERROR(DTypeError, "uniform: dtype is i64; expected f64, f32, bf16 or f16",
              uniform({1}, 1, "", 0, 1, DType::i64, device));
  CHECK_ERROR(DTypeError, "initial_values: dtype is bool",
              randn({1}, 1, "", DType::boolean, device));
  CHECK_ERROR(ConfigError, "eye: -1 rows", eye(-1, 2, DType::f32, device));
  constexpr int64_t many = int64_t{1} << 32;
  CHECK_THROWS_AS(eye(many, many, DType::f32, device), ShapeError);
}

TEST_CASE("constants of more values than the host has memory for name shape, bytes and limit") {
  const Device device = Device::cpu();
  constexpr int64_t many = int64_t{1} << 56;
  const Shape shape{many / 2, 2};
  const auto refused = [](const std::string& op, const std::string& shape, const auto& make) {
    const std::string message = testing::message_of<OutOfMemory>(make);
    INFO(message);
    CHECK(message.starts_with(op + ": the values of " + shape + " take " +
                              std::to_string(many * (op == "initial_values" ? 4 : 8)) +
                              " bytes of host memory; expected at most "));
    CHECK(message.ends_with("; try a smaller shape"));
  };
  const std::string both = shape.str(), flat = Shape{many}.str();
  const DType f32 = DType::f32;
  refused("initial_values", both, [&] { randn(shape, 1, "", f32, device); });
  refused("uniform", both, [&] { uniform(shape, 1, "", 0, 1, f32, device); });
  refused("bernoulli", both, [&] { bernoulli(shape, 0.5, 1, "", f32, device); });
  refused("randint", both, [&] { randint(shape, 0, 2, 1, "", DType::i64, device); });
  refused("permutation", flat, [&] { permutation(many, 1, "", device); });
  refused("linspace", flat, [&] { linspace(0, 1, many, f32, device); });
  refused("arange", flat, [&] { arange(0, many, DType::i64, device); });
}

TEST_CASE("topk gives indices, and refuses more elements than there are") {
  const Var x(Tensor::from(std::vector<double>{1, 5, 5, 2}, {2, 2}, shared_device()));
  CHECK(topk(x, 2).indices.to_host<int64_t>() == std::vector<int64_t>{1, 0, 0, 1});
  CHECK(topk(x, 1, 0).values.value().to_doubles() == std::vector<double>{5, 5});
  CHECK(topk(x, 0).values.shape() == Shape{2, 0});
  CHECK_ERROR(ConfigError, "topk: k is 3; expected 0 to 2", topk(x, 3));
}

TEST_CASE("cumsum of a row has the same bits alone as in a batch") {
  const Tensor x = random_tensor({3, 37}, DType::f32, shared_device(), 5, -1.0, 1.0);
  const std::vector<double> whole = cumsum(Var(x), 1).value().to_doubles();
  std::vector<double> rows;
  for (int64_t row = 0; row < 3; ++row) {
    const std::vector<double> one = cumsum(Var(x.slice(row, row + 1)), 1).value().to_doubles();
    rows.insert(rows.end(), one.begin(), one.end());
  }
  CHECK(whole == rows);
  CHECK(cumsum(Var(x.slice(0, 1)), 0).value().to_doubles() == x.slice(0, 1).to_doubles());
}

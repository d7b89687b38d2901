#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tests/autograd/op_check.h"
#include "zerograd/autograd/values.h"

// Initial values as torch.nn.init's, and samples as torch.multinomial's. Numbers of PyTorch 2.15.
using namespace zg;
using namespace zg::testing;

namespace {

std::vector<float> elements(const Init& init, int64_t count, int64_t begin = 0) {
  std::vector<float> values(static_cast<size_t>(count));
  initialise(init, 3, "w", begin, values);
  return values;
}

std::vector<int64_t> drawn(const Tensor& input, int64_t count, bool replacement,
                           uint64_t seed = 1) {
  return multinomial(input, count, replacement, seed, "draw").to_host<int64_t>();
}

/// The sum of (found - expected)^2 / expected; infinite if something was found that has no chance.
double chi_square(const std::vector<double>& found, const std::vector<double>& expected) {
  double sum = 0.0;
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i] != expected[i])
      sum += (found[i] - expected[i]) * (found[i] - expected[i]) / expected[i];
  return sum;
}

}  // namespace

TEST_CASE("initial values of weights have the bounds and deviations of torch.nn.init") {
  const Shape shape{6, 4, 3, 3};  // 36 inputs, 54 outputs
  const Kaiming leaky{.a = 0.2}, out{.mode = Fan::out, .nonlinearity = Nonlinearity::relu};
  const Kaiming tanh{.nonlinearity = Nonlinearity::tanh};
  const std::pair<Init, double> rows[] = {
      {Init::kaiming_normal(leaky), 0.23112508176051214},
      {Init::kaiming_normal(out), 0.19245008972987526},
      {Init::kaiming_normal(tanh), 0.2777777777777778},
      {Init::kaiming_normal({.mode = Fan::out, .nonlinearity = Nonlinearity::sigmoid}),
       0.13608276348795434},
      {Init::xavier_normal(1.5), 0.223606797749979},
      {Init::kaiming_uniform(leaky), 0.40032038451271784},
      {Init::kaiming_uniform(out), 0.33333333333333337},
      {Init::kaiming_uniform({.nonlinearity = Nonlinearity::selu}), 0.21650635094610968},
      {Init::xavier_uniform(1.5), 0.3872983346207417}};
  for (const auto& [init, number] : rows) {
    CAPTURE(number);
    ParameterStore store;
    const Init of_shape = store.add(store.unit("u"), "w", shape, init).init;
    CHECK(std::fabs(of_shape.stddev / number - 1.0) < 1e-14);
    const auto rounded = static_cast<float>(number);
    const Init plain = &init < &rows[5].first ? Init::normal(rounded) : Init::uniform(rounded);
    CHECK(excess(initial_values(init, shape, 3, "w", DType::f64, shared_device()),
                 initial_values(plain, shape, 3, "w", DType::f64, shared_device()).to_doubles(),
                 0.0, 0x1p-22) < 1);
  }
  CHECK(calculate_gain(Nonlinearity::leaky_relu) == std::sqrt(2.0 / 1.0001));
  ParameterStore store;
  const Unit& unit = store.unit("u");
  for (const Init& init : {Init::kaiming_uniform(), Init::xavier_normal(), Init::orthogonal()}) {
    CHECK_ERROR(ShapeError, "'b' [4] has no numbers of outputs and inputs; expected rank 2",
                store.add(unit, "b", {4}, init));
    CHECK_ERROR(ConfigError, "values of 'w' depend on its shape", elements(init, 1));
    CHECK(store.add(unit, "empty" + std::to_string(unit.parameters.size()), {0, 3}, init)
              .shape.numel() == 0);
  }
}

TEST_CASE("truncated normals have their limits and moments, and each depends on its index alone") {
  struct Row {
    TruncatedNormal limits;
    double mean, variance;
  };
  // From the density and the integral of the normal distribution at the limits.
  const Row rows[] = {
      {{}, 0.0, 0.7737413035499232},
      {{.mean = 1, .std = 2, .a = 0, .b = 1.5}, 0.7614988820717986, 0.183930083730755},
      {{.a = 3, .b = infinity}, 3.283098654930434, 0.0705591867852764},
      {{.a = -infinity, .b = infinity}, 0.0, 1.0},
      {{.std = 0.5, .a = -9, .b = -5}, -5.049046616981212, 0.00236134445664149}};
  constexpr int64_t n = 1 << 16;
  for (const auto& [limits, mean, variance] : rows) {
    CAPTURE(limits.a);
    const Init init = Init::truncated_normal(limits);
    const std::vector<float> values = elements(init, n);
    double sum = 0.0, squares = 0.0, neighbours = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double x = values[i] - mean;
      sum += x;
      squares += x * x;
      if (i > 0) neighbours += x * (values[i - 1] - mean);
      CHECK_UNARY(values[i] >= static_cast<float>(limits.a) &&
                  values[i] <= static_cast<float>(limits.b));
    }
    // Five standard errors each. Fourth moments are at most nine times the square of the variance.
    CHECK(std::fabs(sum / n) < 5 * std::sqrt(variance / n));
    CHECK(std::fabs(neighbours / n) < 5 * variance / std::sqrt(n));
    CHECK(std::fabs(squares / n / variance - 1.0) < 5 * std::sqrt(8.0 / n));
    for (const int64_t begin : {1, 2, 777})
      CHECK(elements(init, 5, begin) ==
            std::vector<float>(values.begin() + begin, values.begin() + begin + 5));
  }
  const Tensor narrow =
      truncated_normal({64}, 1, "t", {.a = 0.1, .b = 0.11}, DType::bf16, shared_device());
  CHECK(narrow.dtype() == DType::bf16);
  CHECK(std::ranges::min(narrow.to_doubles()) >= static_cast<float>(bf16(0.1f)));
  CHECK(std::ranges::max(narrow.to_doubles()) <= static_cast<float>(bf16(0.11f)));
  for (const TruncatedNormal& wrong :
       std::vector<TruncatedNormal>{{.std = 0}, {.a = 2}, {.a = 3}, {.std = not_a_number}})
    CHECK_ERROR(ConfigError, "expected std > 0 and a < b", Init::truncated_normal(wrong));
}

TEST_CASE("orthogonal values have orthonormal rows or columns, and the signs of torch's QR") {
  for (const Shape& shape :
       std::vector<Shape>{{5, 40}, {40, 5}, {24, 24}, {6, 2, 5}, {1, 3}, {7, 1}}) {
    CAPTURE(shape);
    const int64_t rows = shape[0], columns = shape.numel() / rows;
    const bool wide = rows < columns;
    const Tensor x =
        initial_values(Init::orthogonal(3.0), shape, 3, "w", DType::f32, shared_device());
    const Tensor normal =
        initial_values(Init::normal(1), shape, 3, "w", DType::f64, shared_device());
    const auto columns_of = [&](const Tensor& tensor) {
      const Var matrix = cast(Var(tensor.view({rows, columns})), DType::f64);
      return wide ? transpose(matrix, 0, 1) : matrix;
    };
    const Var q = columns_of(x), transposed = transpose(q, 0, 1);
    const int64_t count = std::min(rows, columns);
    const Var product = matmul(transposed, q) / 9.0;
    CHECK(excess(product.value(), eye(count, count, DType::f64, shared_device()).to_doubles(),
                 1e-6) < 1);
    // r = q^T a of a = q r is a triangle with a positive diagonal.
    const Var r = matmul(transposed, columns_of(normal)) / 3.0;
    CHECK(excess(tril(r, -1).value(), std::vector<double>(static_cast<size_t>(count * count)),
                 1e-5) < 1);
    CHECK(std::ranges::min(values_of(diag(r))) > 0);
  }
}

TEST_CASE("every shard of a parameter has the initial values of the same elements of the whole") {
  for (const Init& init : {Init::orthogonal(), Init::kaiming_uniform(), Init::xavier_normal(),
                           Init::truncated_normal({.a = -1})}) {
    ParameterStore whole, rows, columns;
    const Parameter& all = whole.add(whole.unit("u"), "w", {6, 8}, init);
    std::vector<float> expected(48), found;
    initialise(all, 7, 0, expected);
    const Slice lower{.extent = 6, .begin = 2, .rows = 4, .inner = 8};
    const Slice right{.outer = 6, .extent = 8, .begin = 5, .rows = 3};
    const Parameter& low =
        rows.add(rows.unit("u"), "w", {4, 8}, init, {.whole = {6, 8}, .slice = lower});
    const Parameter& side =
        columns.add(columns.unit("u"), "w", {6, 3}, init, {.whole = {6, 8}, .slice = right});
    found.resize(31);
    initialise(low, 7, 1, found);
    CHECK(found == std::vector<float>(expected.begin() + 17, expected.end()));
    found.resize(18);
    initialise(side, 7, 0, found);
    for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == expected[i / 3 * 8 + 5 + i % 3]);
    CHECK(initial_weights(whole, 7).read("w") == expected);
    CHECK(initial_weights(columns, 7).read_part("w", right) == found);
    CHECK(Values(whole, initial_weights(whole, 7), shared_device()).stored(all).to_host<float>() ==
          expected);
  }
}

TEST_CASE("multinomial draws in proportion to the weights of each row") {
  const std::vector<double> weights = {0, 1, 2, 0, 3, 0.5, 1.5, 0};
  constexpr int64_t n = 20'000;
  for (const DType dtype : {DType::f64, DType::bf16}) {
    const Tensor input = cast(Var(Tensor::from(weights, {8}, shared_device())), dtype).value();
    std::vector<double> found(8), expected;
    for (const int64_t i : drawn(input, n, true)) ++found[static_cast<size_t>(i)];
    for (const double weight : weights) expected.push_back(n * weight / 8);
    CHECK(chi_square(found, expected) < 23.5);  // a chance of 1e-4 with 4 degrees of freedom
  }
  // Pairs without replacement: w[i] / s * w[j] / (s - w[i]).
  const std::vector<double> w = {1, 2, 3};
  std::vector<double> rows, pairs(9), expected;
  for (int64_t row = 0; row < n; ++row) rows.insert(rows.end(), w.begin(), w.end());
  const std::vector<int64_t> found = drawn(Tensor::from(rows, {n, 3}, shared_device()), 2, false);
  for (size_t row = 0; row < n; ++row)
    ++pairs[static_cast<size_t>(3 * found[2 * row] + found[2 * row + 1])];
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j)
      expected.push_back(i == j ? 0 : n * w[i] / 6 * w[j] / (6 - w[i]));
  CHECK(chi_square(pairs, expected) < 25.7);  // the same with 5
}

TEST_CASE("multinomial has no repeats without replacement, and depends on seed and weights alone") {
  std::vector<double> weights(100);
  std::iota(weights.begin(), weights.end(), 0.0);
  const Tensor one = Tensor::from(weights, {100}, shared_device());
  const std::vector<int64_t> all = drawn(one, 99, false);
  CHECK(std::set<int64_t>(all.begin(), all.end()).size() == 99);
  CHECK(std::ranges::min(all) == 1);  // the weight of 0 is 0
  const std::vector<int64_t> some = drawn(one, 7, false);
  CHECK(some == std::vector<int64_t>(all.begin(), all.begin() + 7));
  CHECK(some != drawn(one, 7, false, 2));
  CHECK(drawn(one, 7, true) != some);
  const Tensor two = repeat(Var(one.view({1, 100})), {2, 1}).value();
  const Tensor of_two = multinomial(two, 7, false, 1, "draw");
  CHECK(of_two.shape() == Shape{2, 7});
  CHECK(of_two.slice(0, 1).to_host<int64_t>() == some);
  CHECK(of_two.slice(1, 2).to_host<int64_t>() != some);
  const Tensor planned = Tensor::empty({2, 100}, DType::f32, Device::meta());
  CHECK(multinomial(planned, 7, true, 1, "draw").shape() == Shape{2, 7});
  CHECK(drawn(Tensor::empty({0, 3}, DType::f32, shared_device()), 2, false).empty());
}

TEST_CASE("multinomial refuses what torch.multinomial refuses") {
  const auto of = [](const std::vector<double>& weights) {
    return Tensor::from(weights, {static_cast<int64_t>(weights.size())}, shared_device());
  };
  const Tensor good = of({1, 2, 3});
  CHECK_ERROR(ConfigError, "num_samples is 0", drawn(good, 0, true));
  CHECK_ERROR(ConfigError, "num_samples is 4", drawn(good, 4, false));
  CHECK_ERROR(ConfigError, "input is [0]", drawn(of({}), 1, true));
  CHECK_ERROR(DTypeError, "multinomial: input", drawn(indices({1, 2}, {2}), 1, true));
  CHECK_ERROR(ShapeError, "expected rank 1 or 2", drawn(good.view({1, 1, 3}), 1, true));
  for (const double wrong : {-1.0, double{infinity}, -double{infinity}, double{not_a_number}})
    CHECK_ERROR(ConfigError, "none that is negative, infinite or NaN",
                drawn(of({1, wrong, 1}), 1, true));
  CHECK_ERROR(ConfigError, "row 0 of input has 0 weights above 0", drawn(of({0, 0}), 1, true));
  CHECK_ERROR(ConfigError, "1 weights above 0; expected 2 or more", drawn(of({0, 3}), 2, false));
  CHECK_ERROR(ConfigError, "row 1 of input", drawn(of({1, 1, 0, 0}).view({2, 2}), 1, true));
}

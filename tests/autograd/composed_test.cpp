#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "tests/autograd/op_check.h"
#include "zerograd/autograd/grad.h"

// Ops that are made of other ops: shapes, special values and errors. composed_reference_test.cpp
// has values and gradients.
using namespace zg;
using namespace zg::testing;

namespace {

using Doubles = std::vector<double>;

Var var_of(const Doubles& values, const Shape& shape) {
  return Var(Tensor::from(values, shape, shared_device()));
}

}  // namespace

TEST_CASE("min, var and logsumexp keep or drop any axes") {
  const Tensor x = doubles({3, 4, 5}, 1, -2.0, 2.0);
  CHECK(values_of(min(x, {-2})) == values_of(min(x, {1})));
  CHECK(excess(var(x, {-2}, 0).value(), values_of(mul(var(x, {1}), 0.75)), 1e-14) < 1.0);
  CHECK(values_of(logsumexp(x, {-2})) == values_of(logsumexp(x, {1})));
  CHECK(min(x, {1}, true).shape() == Shape{3, 1, 5});
  CHECK(var(x, {0, 2}).shape() == Shape{4});
  CHECK(var(x, {0, 2}, 1, true).shape() == Shape{1, 4, 1});
  CHECK(logsumexp(x, {0, -1}).shape() == Shape{4});
  CHECK(logsumexp(x).shape() == Shape{});
  CHECK(logsumexp(x, {}, true).shape() == Shape{1, 1, 1});
}

TEST_CASE("var of bf16 and f16 does not round the mean, and norm not the squares") {
  for (const auto& [dtype, x] : {std::pair{DType::bf16, 100.0}, {DType::f16, 1000.0}}) {
    CAPTURE(x);
    const Var narrow = cast(var_of({x, x + 0.5, x, x + 0.5}, {4}), dtype);
    CHECK(values_of(var(narrow, {}, 0)) == Doubles{0.0625});
    CHECK(var(narrow, {}, 0).value().dtype() == dtype);
    CHECK(values_of(norm(slice(narrow, 0, 0, 1))) == Doubles{x});
    CHECK(norm(narrow).dtype() == dtype);
    CHECK(norm(narrow, INFINITY).shape() == Shape{});
  }
  Tape tape(shared_device());
  const Var equal_ones = tape.variable(var_of({2, 2}, {2}).value());
  CHECK(values_of(grad(zg::std(equal_ones), equal_ones)) == Doubles{0, 0});
}

TEST_CASE("logsumexp neither overflows nor makes NaN of infinities") {
  CHECK(values_of(logsumexp(var_of({1000, 1000}, {2})))[0] == 1000 + std::log(2.0));
  CHECK(values_of(logsumexp(var_of({-1000, -1000}, {2})))[0] == -1000 + std::log(2.0));
  CHECK(values_of(logsumexp(var_of({-INFINITY, -INFINITY}, {2})))[0] == -INFINITY);
  CHECK(values_of(logsumexp(var_of({-INFINITY, 3}, {2})))[0] == 3);
  CHECK(values_of(logsumexp(var_of({INFINITY, 3}, {2})))[0] == INFINITY);
}

TEST_CASE("abs, reciprocal, rsqrt, clamp and masked_fill give the expected values") {
  const Var x = var_of({-2, -0.5, 0, 0.25, 3}, {5});
  CHECK(values_of(abs(x)) == Doubles{2, 0.5, 0, 0.25, 3});
  CHECK(values_of(reciprocal(x)) == Doubles{-0.5, -2, INFINITY, 4, 1.0 / 3});
  CHECK(values_of(rsqrt(var_of({0.25, 4, 16}, {3}))) == Doubles{2, 0.5, 0.25});
  CHECK(values_of(clamp(x, -0.5, 0.25)) == Doubles{-0.5, -0.5, 0, 0.25, 0.25});
  CHECK(std::isnan(values_of(clamp(var_of({NAN}, {1}), 0, 1))[0]));
  CHECK(values_of(masked_fill(x, less(x, 0.0), 9)) == Doubles{9, 9, 0, 0.25, 3});
  const Var rows = var_of({1, 2, 3, 4}, {2, 2});
  CHECK(values_of(masked_fill(rows, equal(var_of({0, 1}, {2}), 1.0), -1)) == Doubles{1, -1, 3, -1});
}

TEST_CASE("transpose, squeeze, unsqueeze, stack and repeat move and copy elements") {
  const Var x = var_of({0, 1, 2, 3, 4, 5}, {2, 3});
  CHECK(values_of(transpose(x, 0, 1)) == Doubles{0, 3, 1, 4, 2, 5});
  CHECK(transpose(doubles({2, 3, 4}, 1), -1, 0).shape() == Shape{4, 3, 2});
  CHECK(unsqueeze(x, 0).shape() == Shape{1, 2, 3});
  CHECK(unsqueeze(x, -1).shape() == Shape{2, 3, 1});
  CHECK(unsqueeze(x, 1).shape() == Shape{2, 1, 3});
  CHECK(squeeze(unsqueeze(x, 1), 1).shape() == Shape{2, 3});
  CHECK(squeeze(unsqueeze(x, 2), -1).shape() == Shape{2, 3});
  const Var two[] = {var_of({1, 2}, {2}), var_of({3, 4}, {2})};
  CHECK(values_of(stack(two, 0)) == Doubles{1, 2, 3, 4});
  CHECK(values_of(stack(two, -1)) == Doubles{1, 3, 2, 4});
  CHECK(values_of(repeat(x, {1, 2})) == Doubles{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5});
  CHECK(values_of(repeat(x, {2, 1})) == Doubles{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  CHECK(repeat(x, {0, 2}).shape() == Shape{0, 6});
  CHECK(roll(repeat(x, {0, 2}), 1, 0).shape() == Shape{0, 6});
  CHECK(gather(x, 0, indices({}, {0, 9})).shape() == Shape{0, 9});
  constexpr int64_t many = int64_t{1} << 40;  // a plan has no work for each copy
  CHECK(repeat(Tensor::zeros({1, 3}, DType::u8, Device::meta()), {many, 1}).shape() ==
        Shape{many, 3});
}

TEST_CASE("logic, any, all and where with numbers give the expected values") {
  const auto flags = [](const Doubles& values, const Shape& shape) {
    return cast(var_of(values, shape), DType::boolean);
  };
  const Var a = flags({0, 0, 1, 1}, {4}), b = flags({0, 1, 0, 1}, {4});
  CHECK(values_of(logical_and(a, b)) == Doubles{0, 0, 0, 1});
  CHECK(values_of(logical_or(a, b)) == Doubles{0, 1, 1, 1});
  CHECK(values_of(logical_not(a)) == Doubles{1, 1, 0, 0});
  CHECK(logical_or(unsqueeze(a, 1), b).shape() == Shape{4, 4});
  const Var edges = var_of({1, INFINITY, -INFINITY, NAN}, {4});
  CHECK(values_of(isnan(edges)) == Doubles{0, 0, 0, 1});
  CHECK(values_of(isfinite(edges)) == Doubles{1, 0, 0, 0});
  const Var rows = flags({0, 0, 0, 1, 1, 1}, {3, 2});
  CHECK(values_of(any(rows, 1)) == Doubles{0, 1, 1});
  CHECK(values_of(all(rows, 1)) == Doubles{0, 0, 1});
  CHECK(all(rows, 1, true).shape() == Shape{3, 1});
  CHECK(values_of(any(rows)) == Doubles{1});
  CHECK(values_of(all(slice(rows, 0, 0, 0), 0)) == Doubles{1, 1});
  CHECK(values_of(any(slice(rows, 0, 0, 0), 0)) == Doubles{0, 0});
  const Var x = var_of({1, 2, 3, 4}, {4});
  CHECK(values_of(where(a, x, 9)) == Doubles{9, 9, 3, 4});
  CHECK(values_of(where(a, -1, x)) == Doubles{1, 2, -1, -1});
  CHECK_ERROR(DTypeError, "logical_and: b holds f64", logical_and(a, x));
  CHECK_ERROR(DTypeError, "any: x holds f64", any(x));
}

TEST_CASE("argmin, cumsum of integers, linspace, eye and meshgrid give the expected values") {
  const Device& device = shared_device();
  CHECK(values_of(argmin(var_of({3, 1, 1, NAN, 2, NAN}, {2, 3}), 1)) == Doubles{1, 0});
  CHECK(values_of(cumsum(Var(arange(1, 6, DType::i32, device)), 0)) == Doubles{1, 3, 6, 10, 15});
  CHECK(linspace(-1, 1, 5, DType::f32, device).to_doubles() == Doubles{-1, -0.5, 0, 0.5, 1});
  CHECK(linspace(3, 9, 1, DType::f64, device).to_doubles() == Doubles{3});
  CHECK(linspace(0, 1, 11, DType::f64, device).to_doubles()[7] == 1 - 0.1 * 3);  // not 0.1 * 7
  CHECK(eye(2, 3, DType::i32, device).to_doubles() == Doubles{1, 0, 0, 0, 1, 0});
  CHECK(full_like(Tensor::zeros({2}, DType::bf16, device), 1.5).to_doubles() == Doubles{1.5, 1.5});
  const Var line[] = {var_of({1, 2}, {2}), var_of({3, 4, 5}, {3})};
  const std::vector<Var> grids = meshgrid(line);
  CHECK(values_of(grids[0]) == Doubles{1, 1, 1, 2, 2, 2});
  CHECK(values_of(grids[1]) == Doubles{3, 4, 5, 3, 4, 5});
  Tape tape(shared_device());
  const Var none = tape.variable(doubles({2, 0}, 1));
  CHECK(values_of(prod(none, 1)) == Doubles{1, 1});
  CHECK(grad(sum(prod(none, 1)), none).shape() == Shape{2, 0});
  CHECK(values_of(zg::std(var_of({2, 2}, {2}))) == Doubles{0});
}

TEST_CASE(
    "einsum, diag, index_select and argmin refuse wrong operands with the equation or shape") {
  const Var x = doubles({2, 3}, 1);
  CHECK(message_of<ShapeError>([&] {
          einsum("ij,jk", {x, x});
        }) == "einsum: an operand has shape [2, 3]; expected extent 3 for 'j' of 'ij,jk'");
  CHECK_ERROR(ShapeError, "expected rank 3 for 'ijk'", einsum("ijk", {x}));
  CHECK_ERROR(ConfigError, "has 2 operands; expected 1", einsum("ij,jk", {x}));
  CHECK_ERROR(ConfigError, "the result of 'ij->k' has 'k'", einsum("ij->k", {x}));
  CHECK_ERROR(ConfigError, "'i+' has '+'", einsum("i+", {x}));
  CHECK_ERROR(ConfigError, "'i1->i' has '1'", einsum("i1->i", {x}));
  CHECK_ERROR(ConfigError, "tensordot: 1 axes of a and 2 of b", tensordot(x, x, 0, {0, 1}));
  CHECK_ERROR(ShapeError, "diag: x has shape [2, 3]; expected a matrix", diag(x, 4));
  CHECK_ERROR(ShapeError, "index_select: index has shape [1, 1]",
              index_select(x, 0, indices({0}, {1, 1})));
  CHECK_ERROR(ShapeError, "argmin: x has shape [2, 0]", argmin(doubles({2, 0}, 1), 1));
}

TEST_CASE("scan combines the elements before each, for every length, from both ends") {
  const auto subsequences = [](Vars a, Vars b) -> std::vector<Var> {
    return {add(mul(a[0], b[1]), b[0]), mul(a[1], b[1])};  // decimal digits: not commutative
  };
  for (const int64_t n : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13}) {
    CAPTURE(n);
    const Var digits = cast(Var(arange(1, n + 1, DType::i64, shared_device())), DType::f64);
    const Var tens = full_like(digits.value(), 10.0);
    Doubles expected, from_end;
    double number = 0.0;
    for (int64_t i = 1; i <= n; ++i) expected.push_back(number = 10.0 * number + double(i));
    number = 0.0;
    for (int64_t i = n; i >= 1; --i) from_end.push_back(number = 10.0 * number + double(i));
    std::ranges::reverse(from_end);
    CHECK(values_of(scan({digits, tens}, 0, subsequences)[0]) == expected);
    CHECK(values_of(scan({digits, tens}, 0, subsequences, true)[0]) == from_end);
  }
  const Var x = doubles({2, 3}, 1), y = doubles({2, 4}, 1);
  CHECK_ERROR(ShapeError, "scan: a tensor has shape [2, 4]; expected extent 3 along axis 1",
              scan({x, y}, 1, subsequences));
  CHECK_ERROR(ConfigError, "scan: combine is empty", scan({x}, 0, nullptr));
  CHECK_ERROR(ShapeError, "scan: combine returned 1 tensors; expected 2",
              scan({x, x}, 1, [](Vars a, Vars) { return std::vector<Var>{a[0]}; }));
  CHECK_ERROR(ShapeError, "scan: a result of combine has shape [2]; expected [2, 1]",
              scan({x}, 1, [](Vars a, Vars) { return std::vector<Var>{sum(a[0], 1)}; }));
}

TEST_CASE("slices have the places of Python's begin:end:step, and refuse a step of 0") {
  const Var x = var_of({0, 1, 2, 3, 4, 5, 6}, {7});
  CHECK(values_of(slice(x, {{.begin = 1, .end = 6, .step = 2}})) == Doubles{1, 3, 5});
  CHECK(values_of(slice(x, {{.begin = -2}})) == Doubles{5, 6});
  CHECK(values_of(slice(x, {{.end = -5}})) == Doubles{0, 1});
  CHECK(values_of(slice(x, {{.step = -3}})) == Doubles{6, 3, 0});
  CHECK(values_of(slice(x, {{.begin = 4, .end = 0, .step = -2}})) == Doubles{4, 2});
  CHECK(values_of(slice(x, {{.begin = 99, .end = -99, .step = -4}})) == Doubles{6, 2});
  CHECK(values_of(slice(x, {{.begin = -99, .end = 99, .step = 99}})) == Doubles{0});
  CHECK(values_of(slice(x, {{.begin = 5, .end = 2}})).empty());
  CHECK(slice(doubles({2, 3, 4}, 1), {{}, {.begin = 1}}).shape() == Shape{2, 2, 4});
  CHECK_ERROR(ConfigError, "slice: the step along axis 0 is 0", slice(x, {{.step = 0}}));
  CHECK_ERROR(ShapeError, "slice: x has shape [7]; expected rank 2", slice(x, {{}, {}}));
  CHECK_ERROR(ShapeError, "slice_scatter: source has shape [7]; expected [4]",
              slice_scatter(x, x, {{.step = 2}}));
}

TEST_CASE("sort, cummax, nonzero and masked_select give indices, and plans refuse the last two") {
  const Var x = var_of({2, NAN, -1, 2}, {4});
  CHECK(sort(x).indices.to_host<int64_t>() == std::vector<int64_t>{2, 0, 3, 1});
  CHECK(argsort(x, 0, true).to_host<int64_t>() == std::vector<int64_t>{1, 0, 3, 2});
  CHECK(cummax(x, 0).indices.to_host<int64_t>() == std::vector<int64_t>{0, 1, 1, 1});
  CHECK(values_of(cummin(var_of({2, 3, -1, -1}, {4}), 0).values) == Doubles{2, 2, -1, -1});
  CHECK(cummin(var_of({2, 3, -1, -1}, {4}), 0).indices.to_host<int64_t>() ==
        std::vector<int64_t>{0, 0, 2, 3});
  CHECK(values_of(sort(Var(indices({3, -1, 2}, {3}))).values) == Doubles{-1, 2, 3});
  const Var rows = var_of({0, 1, 0, 0, -2, NAN}, {2, 3});
  CHECK(nonzero(rows).to_host<int64_t>() == std::vector<int64_t>{0, 1, 1, 1, 1, 2});
  CHECK(nonzero(slice(rows, 0, 0, 0)).shape() == Shape{0, 2});
  CHECK(nonzero(pad(var_of({1}, {1, 1, 1}), 1, 2, 1)).to_host<int64_t>() ==
        std::vector<int64_t>{0, 2, 0});
  CHECK(masked_select(rows, equal(rows, 9.0)).shape() == Shape{0});
  CHECK(values_of(masked_select(rows, isnan(var_of({0, NAN, 0}, {3})))) == Doubles{1, -2});
  const Var planned(Tensor::zeros({2, 3}, DType::f32, Device::meta()));
  CHECK_ERROR(Unsupported, "nonzero: the shape of the result depends on values", nonzero(planned));
  CHECK_ERROR(Unsupported, "masked_select: the shape", masked_select(planned, equal(planned, 1.0)));
  CHECK_ERROR(ShapeError, "index_add: source has shape [2, 3]; expected [1, 3]",
              index_add(rows, 0, indices({1}, {1}), rows));
}

TEST_CASE("tril and triu keep a triangle of each matrix") {
  for (const int64_t diagonal : {-2, -1, 0, 1, 3}) {
    CAPTURE(diagonal);
    const Tensor x = doubles({2, 3, 4}, 2);
    const Doubles values = x.to_doubles();
    const Doubles lower = values_of(tril(x, diagonal)), upper = values_of(triu(x, diagonal));
    for (int64_t place = 0; place < 24; ++place) {
      const int64_t i = place / 4 % 3, j = place % 4;
      const auto at = static_cast<size_t>(place);
      CHECK(lower[at] == (j - i <= diagonal ? values[at] : 0.0));
      CHECK(upper[at] == (j - i >= diagonal ? values[at] : 0.0));
    }
  }
}

TEST_CASE("ops of integers and bools have PyTorch's values, and their shapes in a plan") {
  const auto of_rows = [](const Var& x, const Var& y) {
    return index_add(x, 0, Tensor::from(std::vector<int64_t>{1, 1}, {2}, x.value().device()), y);
  };
  const std::tuple<const char*, std::function<Var(const Var&)>, Doubles> rows[] = {
      {"max", [](auto& x) { return max(x, 1); }, {6, 0}},
      {"min", [](auto& x) { return min(x, 1); }, {-5, -6}},
      {"argmax", [](auto& x) { return argmax(x); }, {2, 1}},
      {"argmin", [](auto& x) { return argmin(x); }, {1, 0}},
      {"prod", [](auto& x) { return prod(x, 0); }, {-30, 0, -6}},
      {"cumprod", [](auto& x) { return cumprod(x, 1); }, {5, -25, -150, -6, 0, 0}},
      {"cummax", [](auto& x) { return cummax(x, 1).values; }, {5, 5, 6, -6, 0, 0}},
      {"cummin", [](auto& x) { return cummin(x, 1).values; }, {5, -5, -5, -6, -6, -6}},
      {"remainder", [](auto& x) { return remainder(x, 3); }, {2, 1, 0, 0, 0, 2}},
      {"maximum", [](auto& x) { return maximum(x, neg(x)); }, {5, 5, 6, 6, 0, 1}},
      {"clamp", [](auto& x) { return clamp(x, -1, 5); }, {5, -1, 5, -1, 0, -1}},
      {"abs", [](auto& x) { return abs(x); }, {5, 5, 6, 6, 0, 1}},
      {"sign", [](auto& x) { return sign(x); }, {1, -1, 1, -1, 0, -1}},
      {"relu", [](auto& x) { return relu(x); }, {5, 0, 6, 0, 0, 0}},
      {"square", [](auto& x) { return square(x); }, {25, 25, 36, 36, 0, 1}},
      {"tril", [](auto& x) { return tril(x); }, {5, 0, 0, -6, 0, 0}},
      {"pad", [](auto& x) { return pad(x, 1, 1, 0, 7); }, {7, 5, -5, 6, 7, -6, 0, -1}},
      {"diag", [](auto& x) { return diag(x, 1); }, {-5, -1}},
      {"masked_fill", [](auto& x) { return masked_fill(x, x > 0, 9); }, {9, -5, 9, -6, 0, -1}},
      {"outer", [](auto& x) { return outer(max(x, 1), max(x, 1)); }, {36, 0, 0, 0}},
      {"dot", [](auto& x) { return dot(max(x, 1), min(x, 1)); }, {-30}},
      {"sub", [](auto& x) { return 3 - (x - 1); }, {-1, 9, -2, 10, 4, 5}},
      {"minimum", [](auto& x) { return minimum(maximum(x, -1), 5); }, {5, -1, 5, -1, 0, -1}},
      {"index_add", [&](auto& x) { return of_rows(x, x); }, {5, -5, 6, -7, -5, 4}},
      {"sum of bools", [](auto& x) { return sum(x > 0, 1); }, {2, 0}},
      {"cumsum of bools", [](auto& x) { return cumsum(x < 0, 1); }, {0, 1, 1, 1, 1, 2}},
      {"argsort of bools", [](auto& x) { return argsort(x == 0); }, {0, 1, 2, 0, 2, 1}},
      {"xor", [](auto& x) { return not_equal(x > 0, x < 6); }, {0, 1, 1, 1, 1, 1}},
      {"triu of bools", [](auto& x) { return triu(x != 0); }, {1, 1, 1, 0, 0, 1}},
  };
  for (const auto& [name, op, expected] : rows)
    for (const DType dtype : {DType::i32, DType::i64}) {
      INFO(std::string(name), " of ", name_of(dtype));
      const Var y = op(cast(var_of({5, -5, 6, -6, 0, -1}, {2, 3}), dtype));
      CHECK(values_of(y) == expected);
      const Var planned = op(Var(Tensor::zeros({2, 3}, dtype, Device::meta())));
      CHECK(planned.shape() == y.shape());
      CHECK(planned.dtype() == y.dtype());
    }
  CHECK(sum(equal(var_of({1, 2}, {2}), 1)).dtype() == DType::i64);
  CHECK(cumsum(equal(var_of({1, 2}, {2}), 1), 0).dtype() == DType::i64);
  const auto least = static_cast<double>(std::numeric_limits<int32_t>::min());
  const Var x = cast(var_of({3, least, least + 1}, {3}), DType::i32);
  CHECK(values_of(min(x)) == Doubles{least});
  CHECK(values_of(argmin(x)) == Doubles{1});
  CHECK(values_of(cummin(x, 0).values) == Doubles{3, least, least});
}

TEST_CASE("composed ops refuse wrong operands with an error that names the op") {
  const Var x = var_of({1, 2}, {1, 2}), whole(Tensor::zeros({2}, DType::i32, shared_device()));
  CHECK(message_of<ShapeError>([&] { squeeze(x, 1); }) ==
        "squeeze: x has shape [1, 2]; expected extent 1 along axis 1");
  CHECK(message_of<ShapeError>([&] { unsqueeze(x, 3); }) ==
        "unsqueeze: axis 3 of a result of rank 3; expected -3 to 2, and at most rank 6");
  CHECK(message_of<ShapeError>([&] { var(x, {0}); }) ==
        "var: x has shape [1, 2]; expected more than 1 elements along the axes, got 1");
  constexpr int64_t many = int64_t{1} << 32;
  CHECK_THROWS_AS(sum(x, many), ShapeError);
  CHECK_THROWS_AS(max(x, INT64_MAX), ShapeError);
  CHECK_THROWS_AS(repeat(x, {many, many}), ShapeError);
  CHECK_THROWS_AS(arange(-INT64_MAX, INT64_MAX, DType::i64, Device::cpu()), ShapeError);
  CHECK_THROWS_AS(one_hot(arange(0, 1, DType::i64, Device::cpu()), INT64_MAX), ShapeError);
  CHECK(message_of<ShapeError>([&] { repeat(x, {2}); }) ==
        "repeat: x has shape [1, 2]; expected rank 1, a count for each axis");
  CHECK(message_of<ConfigError>([&] { clamp(x, 2, 1); }) ==
        "clamp: low is 2, high is 1; expected low <= high");
  CHECK_ERROR(DTypeError, "min: x holds bool", min(equal(x, x)));
  CHECK_ERROR(DTypeError, "clamp: got the number 0.5 for an operand of i32", clamp(whole, 0.5, 2));
  CHECK_ERROR(DTypeError, "logsumexp: x holds i32", logsumexp(whole));
  CHECK_ERROR(DTypeError, "masked_fill: mask holds", masked_fill(x, x, 0));
  CHECK_ERROR(ShapeError, "stack: no parts", stack({}, 0));
  const Var uneven[] = {x, var_of({1}, {1})};
  CHECK(message_of<ShapeError>([&] { stack(uneven, 0); }) ==
        "stack: a part has shape [1]; expected [1, 2]");
  CHECK_ERROR(ShapeError, "stack: axis 3 of a result of rank 3; expected -3 to 2",
              stack(std::span(uneven).first(1), 3));
  for (const auto& [name, reduce] :
       {std::pair<const char*, std::function<void(const Var&, const Axes&)>>(
            "min", [](const Var&in, const Axes&axes) { min(in, axes); }),
        {"var", [](const Var&in, const Axes&axes) { var(in, axes, 0); }},
        {"logsumexp", [](const Var&in, const Axes&axes) { logsumexp(in, axes); }}}) {
    const std::string op = name;
    CHECK_ERROR(ShapeError, op + ": axis 2", reduce(x, {2}));
    CHECK(message_of<ShapeError>([&] {
            reduce(x, {1, -1});
          }) == op + ": axis 1 of [1, 2] is given twice; expected distinct axes");
    CHECK_ERROR(ShapeError, op + ": x has shape [2, 0]; expected", reduce(doubles({2, 0}, 1), {1}));
  }
}

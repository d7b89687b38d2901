#include "zerograd/kernels/elementwise/elementwise.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/cover.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// The largest error of pow() in the device's library, in ulp: CUDA C++ Programming Guide,
/// "Mathematical Functions"; OpenCL's table of errors.
int power_error(const Device& device) {
  if (device.type() == Device::Type::cuda) return 4;
  return device.type() == Device::Type::hpu ? 16 : 1;
}

/// The element of a contiguous tensor of `shape` that element `flat` of `onto` reads.
int64_t broadcast_index(const Shape& shape, const Shape& onto, int64_t flat) {
  int64_t index = 0, stride = 1;
  for (int axis = onto.rank() - 1; axis >= 0; --axis) {
    const int64_t place = flat % onto[axis];
    flat /= onto[axis];
    const int own = axis - (onto.rank() - shape.rank());
    if (own < 0) continue;
    if (shape[own] > 1) index += place * stride;
    stride *= shape[own];
  }
  return index;
}

struct ShapePair {
  Shape a, b;
};
const ShapePair pairs[] = {
    {{1023}, {1023}},
    {{33, 31}, {31}},
    {{33, 31}, {33, 1}},
    {{1}, {7, 5}},
    {{}, {}},
    {{5, 1, 3}, {1, 4, 3}},
    {{2, 1, 3, 1, 2, 2}, {1, 5, 1, 4, 1, 2}},
    {{0, 3}, {1, 3}},
    {{3, 20000}, {20000}},
    {{5, 6, 16}, {6, 1}},
    {{5, 1, 32}, {1, 6, 1}},
    {{3, 4, 48}, {4, 48}},
};

double expected_binary(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::add:
      return a + b;
    case BinaryOp::subtract:
      return a - b;
    case BinaryOp::multiply:
      return a * b;
    case BinaryOp::divide:
      return a / b;
    case BinaryOp::power:
      return std::pow(a, b);
    case BinaryOp::maximum:
      return std::isnan(a) || std::isnan(b) ? not_a_number : std::fmax(a, b);
    case BinaryOp::minimum:
      return std::isnan(a) || std::isnan(b) ? not_a_number : std::fmin(a, b);
    case BinaryOp::logaddexp:
      return std::log(std::exp(a) + std::exp(b));
    case BinaryOp::remainder:
      return std::fmod(a, b);  // of positive operands
    case BinaryOp::equal:
      return a == b;
    case BinaryOp::not_equal:
      return a != b;
    case BinaryOp::less:
      return a < b;
    case BinaryOp::less_equal:
      return a <= b;
    case BinaryOp::greater:
      return a > b;
    case BinaryOp::greater_equal:
      return a >= b;
  }
  return not_a_number;
}

Tensor run_binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  const DType dtype = is_comparison(op) ? DType::boolean : a.dtype();
  const Tensor y = Tensor::empty(broadcast(a.shape(), b.shape(), "test"), dtype, a.device());
  kernels::binary({.op = op, .a = a, .b = b, .y = y}, a.device().compute());
  return y;
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("axpby and cast give the rounded result for every pair of floating types") {
  for (const Device& device : devices_at_every_level())
    for (DType x_dtype : on_device(floating_dtypes, device))
      for (DType y_dtype : on_device(floating_dtypes, device))
        for (int64_t n : {1, 31, 33, 1023, 70001}) {
          INFO(level_of(device), ", ", name_of(x_dtype), ", ", name_of(y_dtype), ", n ", n);
          const Tensor x = random_tensor({n}, x_dtype, device, 1);
          const Tensor y = random_tensor({n}, y_dtype, device, 2);
          const std::vector<double> xs = x.to_doubles(), ys = y.to_doubles();
          std::vector<double> sums(xs.size());
          for (size_t i = 0; i < xs.size(); ++i) sums[i] = 0.75 * xs[i] - 1.5 * ys[i];
          kernels::axpby({.x = x, .y = y, .a = 0.75, .b = -1.5}, device.compute());
          // Three operations in the accumulator on magnitudes up to 1.5, one rounding to y.
          const double accumulate =
              x_dtype == DType::f64 || y_dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
          const double narrowing = x_dtype == DType::f64 ? 0x1p-24 : 0.0;
          CHECK(excess(y, sums, 5 * accumulate + (y_dtype == DType::f64 ? 0 : 2.25 * narrowing),
                       1.01 * unit_roundoff(y_dtype)) <= 1);
          kernels::cast({.x = x, .y = y}, device.compute());
          // f16 below 2^-14 is spaced 2^-24.
          CHECK(excess(y, xs, y_dtype == DType::f16 ? 0x1p-25 : 0.0,
                       1.001 * unit_roundoff(y_dtype)) <= 1);
        }
}

TEST_CASE("axpby with b = 0 overwrites whatever y held") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device)) {
      const Tensor x = random_tensor({37}, dtype, device, 1);
      const Tensor y = Tensor::full({37}, not_a_number, dtype, device);
      kernels::axpby({.x = x, .y = y, .a = 1.0, .b = 0.0}, device.compute());
      CHECK(same_bits(x, y));
    }
}

TEST_CASE("binary ops broadcast like numpy for every type and level") {
  std::vector<int> ops(static_cast<size_t>(BinaryOp::greater_equal) + 1);
  std::iota(ops.begin(), ops.end(), 0);
  for (const Device& device : devices_at_every_level())
    for_cover(
        [&](DType dtype, const ShapePair& pair, int op) {
          const Tensor a = random_tensor(pair.a, dtype, device, 3, 0.5, 2.0);
          const Tensor b = random_tensor(pair.b, dtype, device, 4, 0.5, 2.0);
          const Shape shape = broadcast(pair.a, pair.b, "test");
          const std::vector<double> as = a.to_doubles(), bs = b.to_doubles();
          INFO(level_of(device), ", ", name_of(dtype), ", ", pair.a.str(), ", ", pair.b.str(),
               ", op ", op);
          std::vector<double> expected(static_cast<size_t>(shape.numel()));
          for (size_t i = 0; i < expected.size(); ++i) {
            const auto at = static_cast<int64_t>(i);
            expected[i] = expected_binary(
                BinaryOp(op), as[static_cast<size_t>(broadcast_index(pair.a, shape, at))],
                bs[static_cast<size_t>(broadcast_index(pair.b, shape, at))]);
          }
          // One operation and one rounding; exp, log1p and a sum.
          const int ulps = BinaryOp(op) == BinaryOp::power       ? power_error(device)
                           : BinaryOp(op) == BinaryOp::logaddexp ? 6
                                                                 : 1;
          const double roundings =
              unit_roundoff(dtype) + 2 * ulps * unit_roundoff(accumulator(dtype));
          CHECK(excess(run_binary(BinaryOp(op), a, b), expected, 1e-300, roundings) <= 1);
        },
        on_device(floating_dtypes, device), pairs, ops);
}

TEST_CASE("strided operands of binary ops and where give the bits of copies") {
  const std::pair<Shape, Strides> reads[] = {{{2, 3, 5, 8}, {120, 8, 24, 1}},  // permuted
                                             {{2, 3, 5, 8}, {0, 8, 24, 1}},    // and repeated
                                             {{6, 1, 33, 1}, {33, 0, 1, 0}},
                                             {{3, 7}, {1, 0}},
                                             {{5}, {0}}};
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (const auto& [shape, strides] : reads)
        for (const BinaryOp op : {BinaryOp::add, BinaryOp::divide, BinaryOp::less}) {
          INFO(level_of(device), ", ", name_of(dtype), ", ", shape.str(), ", op ", int(op));
          Stream& stream = device.compute();
          const Tensor x = random_tensor({240}, dtype, device, 1, 0.5, 2.0);
          const Tensor other = random_tensor(shape, dtype, device, 2, 0.5, 2.0);
          const Tensor bytes = random_tensor(shape, DType::u8, device, 4, 0, 2);
          const Tensor flags = bytes.alias(0, shape, DType::boolean);
          const auto made = [&](DType of) { return Tensor::empty(shape, of, device); };
          const Tensor copy = made(dtype);
          kernels::strided_copy({x, copy, shape, strides, broadcast_strides(shape, shape)}, stream);
          const auto results = [&](const Tensor& read, const ReadStrides& of_read) {
            std::vector<Tensor> all;
            const auto add = [&](const Tensor& a, const Tensor& b, const ReadStrides& of_a,
                                 const ReadStrides& of_b) {
              all.push_back(made(is_comparison(op) ? DType::boolean : dtype));
              kernels::binary({op, a, b, all.back(), of_a, of_b}, stream);
              all.push_back(made(dtype));
              kernels::where({flags, a, b, all.back(), of_a, of_b}, stream);
              if (is_comparison(op)) return;
              const Tensor da = made(dtype), db = made(dtype);
              kernels::binary_backward({op, a, b, other, da, db, of_a, of_b}, stream);
              all.insert(all.end(), {da, db});
            };
            add(read, other, of_read, {});
            add(other, read, {}, of_read);
            add(read, read, of_read, of_read);
            return all;
          };
          const std::vector<Tensor> strided = results(x, strides), expected = results(copy, {});
          for (size_t i = 0; i < expected.size(); ++i) CHECK(same_bits(strided[i], expected[i]));
        }
}

TEST_CASE("elementwise ops give the same bits at every alignment of their operands") {
  const auto results = [](const Device& device, DType dtype, const Shape& shape, int64_t a_begin,
                          int64_t b_begin) {
    const DType other = dtype == DType::f32 ? DType::bf16 : DType::f32;
    const Tensor a = moved(random_tensor(shape, dtype, device, 1, 0.5, 2.0), a_begin);
    const Tensor b = moved(random_tensor(shape, dtype, device, 2, 0.5, 2.0), b_begin);
    const Tensor last = moved(random_tensor({shape[-1]}, dtype, device, 3), b_begin);
    const Tensor bytes = random_tensor(shape, DType::u8, device, 4, 0, 2);
    const Tensor flags = moved(bytes.alias(0, shape, DType::boolean), a_begin);
    const Tensor y = moved(b, b_begin),
                 wide = moved(random_tensor(shape, other, device, 5), b_begin);
    const Tensor small = moved(bytes, b_begin), scaled = moved(wide, a_begin);
    const Tensor exp = moved(y, b_begin), chosen = moved(y, b_begin), da = moved(y, a_begin);
    const Tensor db = moved(y, b_begin);
    kernels::unary({.op = UnaryOp::exp, .x = a, .y = exp}, device.compute());
    kernels::cast({.x = a, .y = wide}, device.compute());
    kernels::cast({.x = a, .y = small}, device.compute());
    kernels::axpby({.x = a, .y = scaled, .a = 0.3, .b = 0.7}, device.compute());
    kernels::where({.condition = flags, .a = a, .b = b, .y = chosen}, device.compute());
    kernels::binary({.op = BinaryOp::divide, .a = a, .b = last, .y = y}, device.compute());
    kernels::binary_backward(
        {.op = BinaryOp::multiply, .a = a, .b = b, .dy = y, .da = da, .db = db}, device.compute());
    return std::vector<Tensor>{
        exp, wide, small, scaled, chosen, y, da, db, run_binary(BinaryOp::less, a, b)};
  };
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device({DType::f32, DType::bf16}, device))
      for (const Shape& shape : {Shape{1}, Shape{1027}, Shape{33, 48}, Shape{7, 5}}) {
        const std::vector<Tensor> expected = results(device, dtype, shape, 0, 0);
        for (int64_t begin : {1, 2, 4, 8})
          for (bool second : {false, true}) {
            INFO(level_of(device), ", ", shape.str(), ", begin ", begin);
            const std::vector<Tensor> actual =
                results(device, dtype, shape, second ? 0 : begin, second ? begin : 0);
            for (size_t i = 0; i < expected.size(); ++i) {
              CAPTURE(i);
              CHECK(same_bits(actual[i], expected[i]));
            }
          }
      }
}

TEST_CASE("maximum and minimum pass NaN on and comparisons with it are false") {
  const Device device = devices_at_every_level().back();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), most = float(infinity);
  const Tensor a = Tensor::from<float>({nan, 1, nan, 2, -most}, {5}, device);
  const Tensor b = Tensor::from<float>({1, nan, nan, 2, most}, {5}, device);
  for (BinaryOp op : {BinaryOp::maximum, BinaryOp::minimum}) {
    const std::vector<double> y = run_binary(op, a, b).to_doubles();
    CHECK(std::isnan(y[0]));
    CHECK(std::isnan(y[1]));
    CHECK(std::isnan(y[2]));
    CHECK(y[3] == 2);
    CHECK(y[4] == (op == BinaryOp::maximum ? infinity : -infinity));
  }
  CHECK(run_binary(BinaryOp::less_equal, a, b).to_doubles() == std::vector<double>{0, 0, 0, 1, 1});
  CHECK(run_binary(BinaryOp::not_equal, a, b).to_doubles() == std::vector<double>{1, 1, 1, 0, 1});
}

TEST_CASE(
    "remainder is exact, with the sign of the divisor, and logaddexp keeps equal infinities") {
  constexpr float inf = infinity, nan = not_a_number;
  const std::vector<float> left = {5, -5, 5, -5, inf, 5, -5, -0.0f, 4, -4, 1e30f, 3},
                           right = {3, 3, -3, -3, 3, inf, inf, 3, 2, 2, 1e-3f, 0};
  const std::vector<double> rest = {
      2, 1, -1, -2, nan, 5, inf, -0.0, 0, -0.0, std::fmod(1e30f, 1e-3f), nan};
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const auto tensor = [&](const std::vector<float>& values) {
      return Tensor::from(values, {static_cast<int64_t>(values.size())}, device);
    };
    const Tensor y = run_binary(BinaryOp::remainder, tensor(left), tensor(right));
    CHECK(excess(y, rest, 0.0) <= 1);
    CHECK(std::signbit(y.to_doubles()[7]));
    const Tensor sums = run_binary(BinaryOp::logaddexp, tensor({inf, -inf, inf, nan, 1, 90}),
                                   tensor({inf, -inf, -inf, 1, 1, -90}));
    CHECK(excess(sums, {inf, -inf, inf, nan, 1 + std::log(2.0), 90}, 0.0, 5e-7) <= 1);
    const Tensor divisor = tensor({3, -3, 3}), da = tensor({0, 0, 0}), db = tensor({0, 0, 0});
    kernels::binary_backward(
        {BinaryOp::remainder, tensor({5, 5, -7}), divisor, tensor({1, 2, 1}), da, db},
        device.compute());
    CHECK(da.to_doubles() == std::vector<double>{1, 2, 1});
    CHECK(db.to_doubles() == std::vector<double>{-1, 4, 3});
  }
}

TEST_CASE("integer arithmetic wraps, division truncates, and remainder has the divisor's sign") {
  const Device device = devices_at_every_level().back();
  const int32_t least = std::numeric_limits<int32_t>::min();
  const Tensor a = Tensor::from<int32_t>({7, -7, least, 5}, {4}, device);
  const Tensor b = Tensor::from<int32_t>({2, 2, -1, -1}, {4}, device);
  CHECK(run_binary(BinaryOp::divide, a, b).to_host<int32_t>() ==
        std::vector<int32_t>{3, -3, least, -5});
  CHECK(run_binary(BinaryOp::remainder, a, b).to_host<int32_t>() ==
        std::vector<int32_t>{1, 1, 0, 0});
  CHECK(run_binary(BinaryOp::add, a, b).to_host<int32_t>() ==
        std::vector<int32_t>{9, -5, std::numeric_limits<int32_t>::max(), 4});
  const Tensor c = Tensor::from<int64_t>({7, -7}, {2}, device);
  CHECK(run_binary(BinaryOp::maximum, c, Tensor::from<int64_t>({0}, {1}, device))
            .to_host<int64_t>() == std::vector<int64_t>{7, 0});
  CHECK(run_binary(BinaryOp::remainder, c, Tensor::from<int64_t>({-3}, {1}, device))
            .to_host<int64_t>() == std::vector<int64_t>{-2, -1});
  const int64_t most = std::numeric_limits<int64_t>::max();
  const Tensor d = Tensor::from<int64_t>({most, most}, {2}, device);
  CHECK(run_binary(BinaryOp::multiply, d, c).to_host<int64_t>() ==
        std::vector<int64_t>{most - 6, 6 - most});
  CHECK(run_binary(BinaryOp::less, c, d).to_doubles() == std::vector<double>{1, 1});
}

TEST_SUITE_END();

TEST_CASE("an integer division by 0 throws a ConfigError with the divisor's index") {
  const Device device = Device::cpu();
  const Tensor a = Tensor::from<int32_t>({7, -7, 3, 5}, {4}, device);
  const Tensor b = Tensor::from<int32_t>({1, 0, 1, 1}, {4}, device);
  CHECK_THROWS_WITH_AS(
      run_binary(BinaryOp::divide, a, b),
      "div: integer division: expected divisors other than 0, got 0 at element 1; try a cast "
      "to a floating type",
      ConfigError);
  CHECK_THROWS_AS(run_binary(BinaryOp::remainder, a, b), ConfigError);
}

TEST_CASE("binary_backward equals dy times the central difference quotient" *
          doctest::test_suite("every device")) {
  std::vector<int> codes(static_cast<size_t>(BinaryOp::logaddexp) + 1);  // remainder jumps
  std::iota(codes.begin(), codes.end(), 0);
  for (const Device& device : devices_at_every_level())
    for_cover(
        [&](DType dtype, const ShapePair& pair, int code) {
          const BinaryOp op = BinaryOp(code);
          INFO(name_of(dtype), ", code ", code, ", ", pair.a.str(), ", ", pair.b.str());
          const Shape shape = broadcast(pair.a, pair.b, "test");
          const Tensor a = random_tensor(pair.a, dtype, device, 3, 0.5, 2.0);
          const Tensor b = random_tensor(pair.b, dtype, device, 4, 0.5, 2.0);
          const Tensor dy = random_tensor(shape, dtype, device, 5);
          const Tensor da = Tensor::empty(shape, dtype, device);
          const Tensor db = Tensor::empty(shape, dtype, device);
          kernels::binary_backward({.op = op, .a = a, .b = b, .dy = dy, .da = da, .db = db},
                                   device.compute());
          const std::vector<double> as = a.to_doubles(), bs = b.to_doubles(), dys = dy.to_doubles();
          std::vector<double> expected_a(dys.size()), expected_b(dys.size());
          constexpr double h = 1e-6;
          for (size_t i = 0; i < dys.size(); ++i) {
            const auto at = static_cast<int64_t>(i);
            const double x = as[static_cast<size_t>(broadcast_index(pair.a, shape, at))];
            const double y = bs[static_cast<size_t>(broadcast_index(pair.b, shape, at))];
            // At a tie the central difference is a half, too.
            expected_a[i] =
                dys[i] / (2 * h) * (expected_binary(op, x + h, y) - expected_binary(op, x - h, y));
            expected_b[i] =
                dys[i] / (2 * h) * (expected_binary(op, x, y + h) - expected_binary(op, x, y - h));
          }
          // Differences: h^2 / 6 of third derivatives below 100 and 4 eps / h; then a rounding of
          // f16 subnormals and five of the accumulator on partial results up to 4 |dy|, beside the
          // error of power.
          const bool is_exact = op != BinaryOp::power || device.type() == Device::Type::cpu;
          const int roundings = 5 + (is_exact ? 0 : power_error(device));
          const double absolute = 2e-9 + (dtype == DType::f16 ? 0x1p-25 : 0.0) +
                                  4 * roundings * unit_roundoff(accumulator(dtype));
          CHECK(excess(da, expected_a, absolute, unit_roundoff(dtype)) <= 1);
          CHECK(excess(db, expected_b, absolute, unit_roundoff(dtype)) <= 1);
        },
        on_device(floating_dtypes, device), pairs, codes);
}

TEST_CASE(
    "maximum and minimum give each operand half the gradient at a tie, and power has slope 0 at 0" *
    doctest::test_suite("every device")) {
  const Device device = devices_at_every_level().back();
  auto gradients = [&](BinaryOp op, std::vector<float> a, std::vector<float> b) {
    const Shape shape{static_cast<int64_t>(a.size())};
    const Tensor dy = Tensor::full(shape, 1, DType::f32, device);
    const Tensor da = Tensor::empty(shape, DType::f32, device);
    const Tensor db = Tensor::empty(shape, DType::f32, device);
    kernels::binary_backward({.op = op,
                              .a = Tensor::from(a, shape, device),
                              .b = Tensor::from(b, shape, device),
                              .dy = dy,
                              .da = da,
                              .db = db},
                             device.compute());
    std::vector<double> both = da.to_doubles();
    for (double value : db.to_doubles()) both.push_back(value);
    return both;
  };
  CHECK(gradients(BinaryOp::maximum, {1, 2, 3}, {2, 2, 2}) ==
        std::vector<double>{0, 0.5, 1, 1, 0.5, 0});
  CHECK(gradients(BinaryOp::minimum, {1, 2, 3}, {2, 2, 2}) ==
        std::vector<double>{1, 0.5, 0, 0, 0.5, 1});
  CHECK(gradients(BinaryOp::power, {0, 0}, {0, 2}) == std::vector<double>{0, 0, 0, 0});
}

TEST_CASE("where picks by condition with broadcasting, for any type" *
          doctest::test_suite("every device")) {
  const Device device = devices_at_every_level().back();
  const auto types = {DType::f64, DType::f32, DType::bf16, DType::i64, DType::u8};
  for (DType dtype : on_device(types, device)) {
    const Tensor flags = Tensor::from<uint8_t>({1, 0, 1, 0, 0}, {5, 1}, device);
    const Tensor a = random_tensor({5, 3}, dtype, device, 1, 0, 100);
    const Tensor b = random_tensor({3}, dtype, device, 2, 0, 100);
    const Tensor y = Tensor::empty({5, 3}, dtype, device);
    kernels::where({.condition = flags.alias(0, {5, 1}, DType::boolean), .a = a, .b = b, .y = y},
                   device.compute());
    std::vector<double> expected = a.to_doubles();
    for (size_t i : {1, 3, 4})
      for (size_t j = 0; j < 3; ++j) expected[i * 3 + j] = b.to_doubles()[j];
    CHECK(y.to_doubles() == expected);
  }
}

TEST_CASE("elementwise ops refuse wrong shapes, dtypes and devices, on meta devices too") {
  for (const Device& device : {Device::cpu(), Device::meta()}) {
    Stream& stream = device.compute();
    auto f32 = [&](const Shape& shape) { return Tensor::empty(shape, DType::f32, device); };
    auto bf = [&](const Shape& shape) { return Tensor::empty(shape, DType::bf16, device); };
    auto i64 = [&](const Shape& shape) { return Tensor::empty(shape, DType::i64, device); };
    CHECK_THROWS_WITH_AS(
        kernels::binary({.op = BinaryOp::add, .a = f32({2, 3}), .b = f32({2}), .y = f32({2, 3})},
                        stream),
        "binary: cannot broadcast [2, 3] with [2]; axis -1 has 3 against 2, expected equal extents "
        "or 1",
        ShapeError);
    CHECK_THROWS_WITH_AS(
        kernels::binary({.op = BinaryOp::add, .a = f32({3}), .b = bf({3}), .y = f32({3})}, stream),
        "binary: b holds bf16; expected f32", DTypeError);
    const auto strided = [&](const Strides& strides) {
      kernels::binary({.op = BinaryOp::add,
                       .a = f32({2, 3}),
                       .b = f32({6}),
                       .y = f32({2, 3}),
                       .b_strides = strides},
                      stream);
    };
    strided({3, 1});
    CHECK_THROWS_WITH_AS(strided({4, 1}),
                         "binary: b of 6 elements is read up to element 6 in steps of 1; expected "
                         "its own elements in steps of 0 or 1, and no stride below 0",
                         ShapeError);
    CHECK_THROWS_AS(strided({1, 2}), ShapeError);
    CHECK_THROWS_AS(strided({-1, 1}), ShapeError);
    CHECK_THROWS_AS(
        kernels::binary({.op = BinaryOp::less, .a = f32({3}), .b = f32({3}), .y = f32({3})},
                        stream),
        DTypeError);
    CHECK_THROWS_AS(
        kernels::binary({.op = BinaryOp::power, .a = i64({3}), .b = i64({3}), .y = i64({3})},
                        stream),
        DTypeError);
    CHECK_THROWS_AS(
        kernels::binary_backward(
            {.op = BinaryOp::less, .a = f32({3}), .b = f32({3}), .dy = f32({3})}, stream),
        Unsupported);
    CHECK_THROWS_WITH_AS(kernels::unary({.op = UnaryOp::exp, .x = f32({3}), .y = f32({4})}, stream),
                         "unary: y has shape [4]; expected [3]", ShapeError);
    CHECK_THROWS_AS(kernels::unary({.op = UnaryOp::exp, .x = i64({3}), .y = i64({3})}, stream),
                    DTypeError);
    CHECK_THROWS_WITH_AS(kernels::axpby({.x = f32({3}), .y = f32({4})}, stream),
                         "axpby: y [4] does not have as many elements as x; expected 3, got 4",
                         ShapeError);
    CHECK_THROWS_AS(kernels::cast({.x = f32({3}), .y = Tensor()}, stream), ShapeError);
    CHECK_THROWS_AS(
        kernels::where({.condition = f32({3}), .a = f32({3}), .b = f32({3}), .y = f32({3})},
                       stream),
        DTypeError);
  }
  CHECK_THROWS_AS(kernels::cast({.x = Tensor::empty({3}, DType::f32, Device::cpu()),
                                 .y = Tensor::empty({3}, DType::f32, Device::cpu(1))},
                                Device::cpu().compute()),
                  DeviceError);
}

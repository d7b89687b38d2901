#include "zerograd/kernels/elementwise/elementwise.h"

#include <cmath>
#include <numbers>

#include "tests/support/op_case.h"
#include "tests/support/unary_functions.h"

using namespace zg;
using namespace zg::testing;

namespace {

Tensor run_unary(UnaryOp op, const Tensor& x) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::unary({.op = op, .x = x, .y = y, .p = unary_p, .q = unary_q}, x.device().compute());
  return y;
}

}  // namespace

TEST_CASE("the plain unary ops and their gradients are those of the C library, in f64") {
  const Device plain = Device::cpu(0, {.threads = 1, .isa = Isa::portable});
  constexpr int64_t n = 33;
  for (size_t code = 0; code < unary_op_count; ++code) {
    const UnaryOp op = UnaryOp(code);
    CAPTURE(code);
    const UnaryFunction& expected = unary_functions[code];
    const Tensor x = random_tensor({n}, DType::f64, plain, 6, expected.low, expected.high);
    const Tensor dy = random_tensor({n}, DType::f64, plain, 7);
    const Tensor y = run_unary(op, x), dx = Tensor::empty({n}, DType::f64, plain);
    kernels::unary_backward({.op = op,
                             .x = reads_result(op) ? Tensor() : x,
                             .y = reads_result(op) ? y : Tensor(),
                             .dy = dy,
                             .dx = dx,
                             .p = unary_p,
                             .q = unary_q},
                            plain.compute());
    const std::vector<double> xs = x.to_doubles(), dys = dy.to_doubles();
    std::vector<double> values, slopes;
    constexpr double h = 1e-6;
    for (size_t i = 0; i < xs.size(); ++i) {
      values.push_back(expected.value(xs[i]));
      const double rise = expected.value(xs[i] + h) - expected.value(xs[i] - h);
      slopes.push_back(dys[i] * rise / (2 * h));
    }
    CHECK(excess(y, values, 1e-15, 1e-15) <= 1);
    CHECK(excess(dx, slopes, 2e-8) <= 1);  // the difference: 4 eps |y| / h and 1e2 h^2
  }
}

TEST_SUITE_BEGIN("every device");

TEST_CASE("unary ops keep NaN, reach their limits and may work in place, at every level") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (size_t code = 0; code < unary_op_count; ++code) {
        if (UnaryOp(code) == UnaryOp::sign) continue;  // 0, as PyTorch's
        const Tensor x = Tensor::full({33}, not_a_number, dtype, device);
        kernels::unary({.op = UnaryOp(code), .x = x, .y = x}, device.compute());
        for (double value : x.to_doubles()) CHECK(std::isnan(value));
      }
  for (const Device& device : devices_at_every_level()) {
    const Tensor x =
        Tensor::from<float>({-float(infinity), -200, -1e-20f, 1e-20f, 200}, {5}, device);
    auto of = [&](UnaryOp op) { return run_unary(op, x).to_doubles(); };
    const std::vector<double> xs = x.to_doubles();
    // Exact on the CPU; else with the errors of OpenCL's table, which allows more than CUDA's.
    const bool is_cpu = device.type() == Device::Type::cpu;
    const auto is_near = [&](UnaryOp op, const std::vector<double>& expected, int ulps) {
      return excess(run_unary(op, x), expected, 0.0,
                    (is_cpu ? 0 : ulps) * 2 * unit_roundoff(DType::f32)) <= 1;
    };
    CHECK(is_near(UnaryOp::exp, {0, 0, 1, 1, infinity}, 3));
    CHECK(is_near(UnaryOp::tanh, {-1, -1, xs[2], xs[3], 1}, 5));
    CHECK(of(UnaryOp::sigmoid) == std::vector<double>{0, 0, 0.5, 0.5, 1});
    CHECK(of(UnaryOp::relu) == std::vector<double>{0, 0, 0, xs[3], 200});
    CHECK(of(UnaryOp::silu)[4] == 200);
  }
}

TEST_CASE("sin, cos and their gradients are accurate for arguments of any size, NaN at infinity") {
  // Near multiples of pi / 2, and the f32 that is nearest to one: 16367173 * 2^72.
  const std::vector<float> xs = {
      0.0f,    -0.0f,    1e-30,          0.5f, -1.0f,  3.1415927f, -3.1415927f,
      710.0f,  65535.0f, 0x1.921fb6p16f, 1e6f, -1e10f, 1e22f,      16367173.0f * 0x1p72f,
      -3.4e38f};
  const auto n = static_cast<int64_t>(xs.size());
  std::vector<double> sines, cosines, negative_sines;
  for (float value : xs) {
    sines.push_back(std::sin(static_cast<double>(value)));
    cosines.push_back(std::cos(static_cast<double>(value)));
    negative_sines.push_back(-sines.back());
  }
  const double error = 4 * 2 * unit_roundoff(DType::f32);  // 4 ulp: the limit of OpenCL
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const Tensor x = Tensor::from(xs, {n}, device), dy = Tensor::full({n}, 1.0, DType::f32, device);
    const auto slopes = [&](UnaryOp op) {
      const Tensor dx = Tensor::empty({n}, DType::f32, device);
      kernels::unary_backward({.op = op, .x = x, .dy = dy, .dx = dx}, device.compute());
      return dx;
    };
    const Tensor sine = run_unary(UnaryOp::sin, x);
    CHECK(excess(sine, sines, 0.0, error) <= 1);
    CHECK(excess(slopes(UnaryOp::sin), cosines, 0.0, error) <= 1);
    CHECK(excess(run_unary(UnaryOp::cos, x), cosines, 0.0, error) <= 1);
    CHECK(excess(slopes(UnaryOp::cos), negative_sines, 0.0, error) <= 1);
    CHECK(std::signbit(sine.to_doubles()[1]));
    const Tensor ends = Tensor::from<float>({infinity, -float(infinity)}, {2}, device);
    for (UnaryOp op : {UnaryOp::sin, UnaryOp::cos})
      for (double value : run_unary(op, ends).to_doubles()) CHECK(std::isnan(value));
  }
}

TEST_CASE("erf and log1p keep the digits of small arguments and reach their limits") {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const auto results = [&](UnaryOp op, const std::vector<float>& xs) {
      return run_unary(op, Tensor::from(xs, {static_cast<int64_t>(xs.size())}, device));
    };
    const double ulp = 2 * unit_roundoff(DType::f32);
    const std::vector<float> tiny = {-1e-3f, -1e-10f, 1e-20f, 1e-30};
    std::vector<double> erfs, logs;
    for (float value : tiny) {
      erfs.push_back(std::erf(static_cast<double>(value)));
      logs.push_back(std::log1p(static_cast<double>(value)));
    }
    CHECK(excess(results(UnaryOp::erf, tiny), erfs, 0.0, 16 * ulp) <= 1);  // the limits of OpenCL
    CHECK(excess(results(UnaryOp::log1p, tiny), logs, 0.0, 2 * ulp) <= 1);
    CHECK(results(UnaryOp::erf, {-float(infinity), infinity}).to_doubles() ==
          std::vector<double>{-1, 1});
    const std::vector<double> ends =
        results(UnaryOp::log1p, {-1.0f, infinity, -1.5f, -float(infinity)}).to_doubles();
    CHECK(ends[0] == -double{infinity});
    CHECK(ends[1] == double{infinity});
    CHECK(std::isnan(ends[2]));
    CHECK(std::isnan(ends[3]));
  }
}

TEST_CASE("expm1 and log1p are within 2 ulp for numbers of all sizes and signs") {
  std::vector<float> xs;
  for (float size = 0x1p-30f; size < 88.7f; size *= 1.01f) xs.push_back(size), xs.push_back(-size);
  for (int half = -60; half < 256; ++half)  // where the multiple of ln 2 changes
    xs.push_back(static_cast<float>(half * std::numbers::ln2 / 2));
  std::vector<float> above = {-1 + 0x1p-24f, -0.5f, 1, 0x1p25f, 3.4e38f};  // -1
  std::vector<double> expected, logarithms;
  for (float x : xs) {
    expected.push_back(std::expm1(double{x}));
    if (x > -1) above.push_back(x);
  }
  for (float x : above) logarithms.push_back(std::log1p(double{x}));
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const int ulps = device.type() == Device::Type::hpu ? 3 : 2;
    const auto worst = [&](UnaryOp op, const std::vector<float>& from, const auto& results) {
      const Tensor x = Tensor::from(from, {static_cast<int64_t>(from.size())}, device);
      return excess(run_unary(op, x), results, 0, ulps * 2 * unit_roundoff(DType::f32));
    };
    CHECK(worst(UnaryOp::expm1, xs, expected) <= 1);
    CHECK(worst(UnaryOp::log1p, above, logarithms) <= 1);
  }
}

TEST_CASE("integers, signs and functions with poles have PyTorch's values at the edges") {
  using Doubles = std::vector<double>;
  constexpr double inf = infinity, nan = not_a_number, half_pi = std::numbers::pi / 2;
  struct Edges {
    UnaryOp op;
    Doubles x, y, slope;
  };
  const Edges edges[] = {
      {UnaryOp::floor,
       {-1.5, -0.0, 0.7, 8388607.5, -8388607.5, -1e30, inf},
       {-2, -0.0, 0, 8388607, -8388608, -1e30, inf},
       {0, 0, 0, 0, 0, 0, 0}},
      {UnaryOp::ceil,
       {-1.5, -0.5, -0.0, 0.2, 4194304.5, 1e30},
       {-1, -0.0, -0.0, 1, 4194305, 1e30},
       {0, 0, 0, 0, 0, 0}},
      {UnaryOp::round,
       {-2.5, -0.5, -0.0, 0.5, 1.5, 2.5, 4194304.5, 8388609, -inf},
       {-2, -0.0, -0.0, 0, 2, 2, 4194304, 8388609, -inf},
       {0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {UnaryOp::sign, {-inf, -1e-30, -0.0, 1e30, nan}, {-1, -1, 0, 1, 0}, {0, 0, 0, 0, 0}},
      {UnaryOp::square, {-3, -0.0, 1e30}, {9, 0, inf}, {-6, -0.0, 2e30}},
      {UnaryOp::expm1, {-inf, -20, -0.0, 200}, {-1, -1, -0.0, inf}, {0, std::exp(-20.0), 1, inf}},
      {UnaryOp::log2, {0.125, 0, -1, inf, 0x1p-100}, {-3, -inf, nan, inf, -100}, {}},
      {UnaryOp::softplus, {-inf, -200, 200, inf}, {0, 0, 200, inf}, {0, 0, 1, 1}},
      {UnaryOp::hard_swish, {-inf, -3, -0.0, 3, inf}, {nan, -0.0, -0.0, 3, inf}, {0, 0, 0.5, 1, 1}},
      {UnaryOp::asin, {-1, -0.0, 1, 1.5}, {-half_pi, -0.0, half_pi, nan}, {inf, 1, inf, nan}},
      {UnaryOp::acos, {-1, 1, -1.5}, {2 * half_pi, 0, nan}, {-inf, -inf, nan}},
      {UnaryOp::atan, {-inf, -0.0, 1e-30, inf}, {-half_pi, -0.0, 1e-30, half_pi}, {0, 1, 1, 0}},
      {UnaryOp::sinh, {-inf, -0.0, 89, 90}, {-inf, -0.0, std::sinh(89), inf}, {}},
      {UnaryOp::cosh, {-inf, -0.0, 89, 90}, {inf, 1, std::cosh(89), inf}, {}},
      {UnaryOp::clamp,
       {-inf, 0.125, 0.25, 1, 1.5, 2, inf, nan},
       {0.25, 0.25, 0.25, 1, 1.5, 1.5, 1.5, nan},
       {0, 0, 0, 1, 0, 0, 0, 0}},
      {UnaryOp::relu, {-inf, -0.0, 4, nan}, {0, -0.0, 4, nan}, {0, 0, 1, 1}},
      {UnaryOp::tanh, {-inf, -0.0, 0, inf}, {-1, -0.0, 0, 1}, {0, 1, 1, 0}},
      {UnaryOp::elu,
       {-inf, -0.0, 200, inf, nan},
       {-0.25, -0.0, 200, inf, nan},
       {0, 0.25, 1, 1, nan}},
      {UnaryOp::leaky_relu,
       {-inf, -4, -0.0, 4, inf, nan},
       {-inf, -1, -0.0, 4, inf, nan},
       {0.25, 0.25, 0.25, 1, 1, 0.25}}};
  for (const Device& device : devices_at_every_level())
    for (const Edges& edge : edges) {
      INFO("op ", static_cast<int>(edge.op), " ", level_of(device));
      const auto n = static_cast<int64_t>(edge.x.size());
      const Tensor x = Tensor::from(std::vector<float>(edge.x.begin(), edge.x.end()), {n}, device);
      const auto check = [&](const Tensor& got, const Doubles& expected) {
        const Doubles values = got.to_doubles();
        for (size_t i = 0; i < expected.size(); ++i) {
          INFO(edge.x[i], " gives ", values[i], "; expected ", expected[i]);
          CHECK(excess(got.slice(int64_t(i), int64_t(i) + 1), {expected[i]}, 0, 2e-6) <= 1);
          if (expected[i] == 0) CHECK(std::signbit(values[i]) == std::signbit(expected[i]));
        }
      };
      const Tensor y = run_unary(edge.op, x), dx = Tensor::empty({n}, DType::f32, device);
      check(y, edge.y);
      const Tensor dy = Tensor::full({n}, 1.0, DType::f32, device);
      kernels::unary_backward({edge.op, x, y, dy, dx, unary_p, unary_q}, device.compute());
      check(dx, edge.slope);
    }
}

TEST_SUITE_END();

#include "zerograd/kernels/elementwise/elementwise.h"

#include <cmath>

#include "tests/support/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

double expected_unary(UnaryOp op, double x) {
  switch (op) {
    case UnaryOp::negate:
      return -x;
    case UnaryOp::exp:
      return std::exp(x);
    case UnaryOp::log:
      return std::log(x);
    case UnaryOp::sqrt:
      return std::sqrt(x);
    case UnaryOp::tanh:
      return std::tanh(x);
    case UnaryOp::sigmoid:
      return 1 / (1 + std::exp(-x));
    case UnaryOp::relu:
      return x > 0 ? x : 0;
    case UnaryOp::silu:
      return x / (1 + std::exp(-x));
    case UnaryOp::abs:
      return std::fabs(x);
    case UnaryOp::reciprocal:
      return 1 / x;
    case UnaryOp::sin:
      return std::sin(x);
    case UnaryOp::cos:
      return std::cos(x);
    case UnaryOp::erf:
      return std::erf(x);
    case UnaryOp::log1p:
      return std::log1p(x);
  }
  return not_a_number;
}

Tensor run_unary(UnaryOp op, const Tensor& x) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::unary({.op = op, .x = x, .y = y}, x.device().compute());
  return y;
}

}  // namespace

TEST_CASE("the plain unary ops and their gradients are those of the C library, in f64") {
  const Device plain = Device::cpu(0, {.threads = 1, .isa = Isa::portable});
  constexpr int64_t n = 33;
  for (size_t code = 0; code < unary_op_count; ++code) {
    const UnaryOp op = UnaryOp(code);
    CAPTURE(code);
    const bool positive = op == UnaryOp::log || op == UnaryOp::sqrt || op == UnaryOp::reciprocal;
    const double low = positive ? 0.25 : op == UnaryOp::log1p ? -0.75 : -3.0;
    const Tensor x = random_tensor({n}, DType::f64, plain, 6, low, 3.0);
    const Tensor dy = random_tensor({n}, DType::f64, plain, 7);
    const Tensor y = run_unary(op, x), dx = Tensor::empty({n}, DType::f64, plain);
    kernels::unary_backward({.op = op,
                             .x = reads_result(op) ? Tensor() : x,
                             .y = reads_result(op) ? y : Tensor(),
                             .dy = dy,
                             .dx = dx},
                            plain.compute());
    const std::vector<double> xs = x.to_doubles(), dys = dy.to_doubles();
    std::vector<double> values, slopes;
    constexpr double h = 1e-6;
    for (size_t i = 0; i < xs.size(); ++i) {
      values.push_back(expected_unary(op, xs[i]));
      const double rise = expected_unary(op, xs[i] + h) - expected_unary(op, xs[i] - h);
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
      0.0f,    -0.0f,    1e-30f,         0.5f, -1.0f,  3.1415927f, -3.1415927f,
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
    const std::vector<float> tiny = {-1e-3f, -1e-10f, 1e-20f, 1e-30f};
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

TEST_SUITE_END();

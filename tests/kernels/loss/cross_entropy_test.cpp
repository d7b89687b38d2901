#include "zerograd/kernels/loss/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/op_case.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr int64_t ignored = -1;

/// Row 1 of three or more is ignored.
std::vector<int64_t> random_targets(int64_t N, int64_t V) {
  std::vector<int64_t> targets(static_cast<size_t>(N));
  for (size_t n = 0; n < targets.size(); ++n)
    targets[n] = n == 1 && N > 2 ? ignored : Philox::block({static_cast<uint32_t>(n)}, 9)[0] % V;
  return targets;
}

/// Everything in doubles, from the logits on.
struct ExpectedLoss {
  std::vector<double> loss, log_sum, dlogits;

  ExpectedLoss(const std::vector<double>& logits, const std::vector<int64_t>& targets,
               const std::vector<double>& dloss)
      : dlogits(logits.size()) {
    const size_t V = logits.size() / targets.size();
    for (size_t n = 0; n < targets.size(); ++n) {
      const double* row = logits.data() + n * V;
      const double largest = *std::max_element(row, row + V);
      double sum = 0;
      for (size_t v = 0; v < V; ++v) sum += std::exp(row[v] - largest);
      log_sum.push_back(largest + std::log(sum));
      const bool counts = targets[n] != ignored;
      const auto target = static_cast<size_t>(counts ? targets[n] : 0);
      loss.push_back(counts ? log_sum[n] - row[target] : 0.0);
      if (!counts) continue;
      for (size_t v = 0; v < V; ++v)
        dlogits[n * V + v] = (std::exp(row[v] - log_sum[n]) - (v == target)) * dloss[n];
    }
  }
};

struct Projection {
  int64_t N, V, C;
};

struct ProjectionResult {
  Tensor loss, dx, dweight;
};

constexpr double factor = 0.75;

ProjectionResult run_projection(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  const Device device = x.device();
  const DType wide = accumulator(x.dtype());
  ProjectionResult r = {Tensor::empty({x.extent(0)}, wide, device),
                        Tensor::empty(x.shape(), wide, device),
                        Tensor::empty(weight.shape(), wide, device)};
  kernels::projection_cross_entropy({.x = x,
                                     .weight = weight,
                                     .targets = targets,
                                     .loss = r.loss,
                                     .dx = r.dx,
                                     .dweight = r.dweight,
                                     .gradient_factor = factor},
                                    device.compute());
  return r;
}

Tensor projection_loss(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  const Tensor loss = Tensor::empty({x.extent(0)}, accumulator(x.dtype()), x.device());
  kernels::projection_cross_entropy({.x = x, .weight = weight, .targets = targets, .loss = loss},
                                    x.device().compute());
  return loss;
}

void check_projection(const Projection& p, DType dtype, const Device& device) {
  INFO(level_of(device), ", ", name_of(dtype), ", N ", p.N, ", V ", p.V, ", C ", p.C);
  const auto N = static_cast<size_t>(p.N), V = static_cast<size_t>(p.V),
             C = static_cast<size_t>(p.C);
  const Tensor x = random_tensor({p.N, p.C}, dtype, device, 1);
  const Tensor weight = random_tensor({p.V, p.C}, dtype, device, 2);
  const std::vector<int64_t> targets = random_targets(p.N, p.V);
  const Tensor wanted = Tensor::from(targets, {p.N}, device);
  const ProjectionResult r = run_projection(x, weight, wanted);
  CHECK(same_bits(projection_loss(x, weight, wanted), r.loss));

  const std::vector<double> xs = x.to_doubles(), ws = weight.to_doubles();
  std::vector<double> logits(N * V);
  for (size_t n = 0; n < N; ++n)
    for (size_t v = 0; v < V; ++v)
      for (size_t c = 0; c < C; ++c) logits[n * V + v] += xs[n * C + c] * ws[v * C + c];
  const ExpectedLoss expected(logits, targets, std::vector<double>(N, factor));
  std::vector<double> dx(N * C), dweight(V * C), reach(V);
  for (size_t n = 0; n < N; ++n)
    for (size_t v = 0; v < V; ++v) {
      const double d = expected.dlogits[n * V + v];
      reach[v] += std::fabs(d);
      for (size_t c = 0; c < C; ++c) {
        dx[n * C + c] += d * ws[v * C + c];
        dweight[v * C + c] += d * xs[n * C + c];
      }
    }

  // A logit sums C products below 1 in the accumulator; its error is a relative one of exp(logit),
  // beside 2 ulp of exp itself and sums of V terms in blocks of 1024.
  const double wide = unit_roundoff(accumulator(dtype));
  const double logit = wide * (static_cast<double>(p.C) + 32);
  CHECK(excess(r.loss, expected.loss, 2 * logit, 2 * wide) <= 1);
  // The gradient of a logit is rounded to dtype, whose absolute values sum to at most 2 along a row
  // and to `reach` along a column; f16 is absolute below 2^-14. Then sums in the accumulator.
  const double rounding = dtype == accumulator(dtype) ? 0 : unit_roundoff(dtype);
  const double subnormal = dtype == DType::f16 ? 0x1p-25 : 0;
  const double largest = *std::ranges::max_element(reach);
  const double each = rounding + 2 * logit + 4 * wide;
  const double sums_v = std::sqrt(static_cast<double>(p.V)),
               sums_n = std::sqrt(static_cast<double>(p.N));
  CHECK(excess(r.dx, dx, 2 * (each + wide * sums_v) + subnormal * static_cast<double>(p.V),
               2 * wide) <= 1);
  CHECK(excess(r.dweight, dweight,
               largest * (each + wide * sums_n) + subnormal * static_cast<double>(p.N),
               2 * wide) <= 1);
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE(
    "cross entropy and its gradient match the formula in double for every type, level and width") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (int64_t V : {1, 3, 31, 33, 65, 1023, 4099})
        for (bool in_place : {false, true}) {
          INFO(level_of(device), ", ", name_of(dtype), ", V ", V);
          const int64_t N = 5;
          const DType wide_type = accumulator(dtype);
          const Tensor logits = random_tensor({N, V}, dtype, device, 4, -15, 15);
          const Tensor dloss = random_tensor({N}, wide_type, device, 5);
          const std::vector<int64_t> targets = random_targets(N, V);
          const ExpectedLoss expected(logits.to_doubles(), targets, dloss.to_doubles());
          const Tensor at =
              Tensor::from(std::vector<int32_t>(targets.begin(), targets.end()), {N}, device);
          const Tensor loss = Tensor::empty({N}, wide_type, device);
          const Tensor log_sum = Tensor::empty({N}, wide_type, device);
          const Tensor dlogits = in_place ? logits : Tensor::empty({N, V}, dtype, device);
          kernels::cross_entropy_forward(
              {.logits = logits, .targets = at, .loss = loss, .log_sum = log_sum},
              device.compute());
          kernels::cross_entropy_backward({.logits = logits,
                                           .targets = at,
                                           .log_sum = log_sum,
                                           .dloss = dloss,
                                           .dlogits = dlogits},
                                          device.compute());
          // An exp good to 2 ulp, sums in blocks, a logarithm; loss cancels magnitudes up to 30.
          const double wide = unit_roundoff(wide_type);
          CHECK(excess(log_sum, expected.log_sum, 16 * wide, 2 * wide) <= 1);
          CHECK(excess(loss, expected.loss, 16 * wide, 2 * wide) <= 1);
          // The argument of exp is up to 30 and rounded to wide, which exp makes relative.
          CHECK(excess(dlogits, expected.dlogits, dtype == DType::f16 ? 0x1p-25 : 64 * wide,
                       unit_roundoff(dtype) + 64 * wide) <= 1);
        }
}

TEST_CASE("cross entropy is stable for huge logits and for logits of minus infinity") {
  for (const Device& device : devices_at_every_level()) {
    const float infinity = std::numeric_limits<float>::infinity();
    const Tensor logits = Tensor::from<float>({1e5f, 1e5f, -1e5f, 2, -infinity, 2}, {2, 3}, device);
    const Tensor targets = Tensor::from<int64_t>({0, 2}, {2}, device);
    const Tensor loss = Tensor::empty({2}, DType::f32, device);
    const Tensor log_sum = Tensor::empty({2}, DType::f32, device);
    kernels::cross_entropy_forward(
        {.logits = logits, .targets = targets, .loss = loss, .log_sum = log_sum}, device.compute());
    CHECK(excess(loss, {std::log(2.0), std::log(2.0)}, 0, 1e-6) <= 1);
    const Tensor dloss = Tensor::full({2}, 1, DType::f32, device);
    kernels::cross_entropy_backward({.logits = logits,
                                     .targets = targets,
                                     .log_sum = log_sum,
                                     .dloss = dloss,
                                     .dlogits = logits},
                                    device.compute());
    // log_sum near 1e5 is rounded to 2^-7, and the gradient with it.
    CHECK(excess(logits, {-0.5, 0.5, 0, 0.5, 0, -0.5}, 0x1p-7) <= 1);
  }
}

TEST_CASE("projection cross entropy matches the formula in double for every type and level") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (const Projection& p :
           {Projection{1, 1, 1}, Projection{31, 3, 33}, Projection{33, 65, 31},
            Projection{5, 4099, 16}, Projection{3, 9001, 9}})
        check_projection(p, dtype, device);
}

TEST_CASE(
    "projection cross entropy matches the formula in double when it cuts many rows into blocks") {
  const Device device = devices_at_every_level().back();
  // CUDA's blocks have 4 Mi logits and at least 4096 rows; these are two of 4100.
  const bool large_blocks = device.type() == Device::Type::cuda;
  check_projection(large_blocks ? Projection{8200, 513, 3} : Projection{2700, 4099, 3}, DType::bf16,
                   device);
  if (device.type() == Device::Type::cpu)  // an emulated device takes its time
    check_projection({2700, 4099, 3}, DType::f32, device);
}

// With one row of one element, 1, the gradient of a weight is that of its logit.
TEST_CASE(
    "projection cross entropy gives each logit its gradient in a row that shared memory of a GPU "
    "cannot hold") {
  const Device device = devices_at_every_level().back();
  constexpr int64_t V = 49'003;
  for (DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(name_of(dtype));
    const Tensor weight = random_tensor({V, 1}, dtype, device, 2, -4.0, 4.0);
    const ProjectionResult r =
        run_projection(Tensor::full({1, 1}, 1.0, dtype, device), weight,
                       Tensor::from(std::vector<int64_t>{30'000}, {1}, device));
    const ExpectedLoss expected(weight.to_doubles(), {30'000}, {factor});
    // A logit below 4 and a log-sum below 16 are rounded to f32, which exp makes relative.
    const double wide = 64 * unit_roundoff(DType::f32);
    CHECK(excess(r.loss, expected.loss, wide, 0) <= 1);
    CHECK(excess(r.dweight, expected.dlogits, 0, unit_roundoff(dtype) + wide) <= 1);
  }
}

TEST_SUITE_END();

TEST_CASE(
    "projection cross entropy matches the formula in double for a row longer than its usual "
    "scratch") {
  check_projection({2, 10'500'001, 1}, DType::f32, Device::cpu(0, {.threads = 2}));
}

TEST_CASE("projection cross entropy has the same bits for any thread count") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Projection& p :
         {Projection{704, 65, 128}, Projection{130, 4500, 64}, Projection{2700, 4099, 8}}) {
      std::vector<ProjectionResult> results;
      for (int threads : {1, 2}) {
        const Device device = Device::cpu(0, {.threads = threads});
        results.push_back(run_projection(random_tensor({p.N, p.C}, dtype, device, 1),
                                         random_tensor({p.V, p.C}, dtype, device, 2),
                                         Tensor::from(random_targets(p.N, p.V), {p.N}, device)));
      }
      CHECK(same_bits(results[0].loss, results[1].loss));
      CHECK(same_bits(results[0].dx, results[1].dx));
      CHECK(same_bits(results[0].dweight, results[1].dweight));
    }
}

TEST_CASE("projection cross entropy gives either gradient alone" *
          doctest::test_suite("every device")) {
  const Device device = devices_at_every_level().back();
  const Projection p{7, 4500, 5};
  const Tensor x = random_tensor({p.N, p.C}, DType::bf16, device, 1);
  const Tensor weight = random_tensor({p.V, p.C}, DType::bf16, device, 2);
  const Tensor targets = Tensor::from(random_targets(p.N, p.V), {p.N}, device);
  const ProjectionResult both = run_projection(x, weight, targets);
  ProjectionCrossEntropy args = {.x = x,
                                 .weight = weight,
                                 .targets = targets,
                                 .loss = Tensor::empty({p.N}, DType::f32, device),
                                 .gradient_factor = factor};
  args.dx = Tensor::empty(x.shape(), DType::f32, device);
  kernels::projection_cross_entropy(args, device.compute());
  CHECK(same_bits(args.dx, both.dx));
  args.dx = {};
  args.dweight = Tensor::empty(weight.shape(), DType::f32, device);
  kernels::projection_cross_entropy(args, device.compute());
  CHECK(same_bits(args.dweight, both.dweight));
}

TEST_CASE("projection cross entropy of no rows or no columns gives gradients of zeros" *
          doctest::test_suite("every device")) {
  const Device device = devices_at_every_level().back();
  const Tensor weight = random_tensor({65, 8}, DType::f32, device, 2);
  const ProjectionResult r = run_projection(Tensor::empty({0, 8}, DType::f32, device), weight,
                                            Tensor::empty({0}, DType::i32, device));
  CHECK(r.dweight.to_doubles() == std::vector<double>(65 * 8, 0.0));
  const ProjectionResult none = run_projection(
      random_tensor({2, 8}, DType::f32, device, 1), Tensor::empty({0, 8}, DType::f32, device),
      Tensor::from(std::vector<int32_t>{-1, -1}, {2}, device));
  CHECK(none.loss.to_doubles() == std::vector<double>(2, 0.0));
  CHECK(none.dx.to_doubles() == std::vector<double>(2 * 8, 0.0));
}

TEST_CASE("projection cross entropy uses scratch for only a small part of the logits") {
  auto peak = [](const Projection& p, bool gradients) {
    const Device device = Device::meta();
    auto empty = [&](const Shape& shape, DType dtype) {
      return Tensor::empty(shape, dtype, device);
    };
    const Tensor x = empty({p.N, p.C}, DType::bf16), weight = empty({p.V, p.C}, DType::bf16);
    const Tensor targets = empty({p.N}, DType::i32);
    gradients ? run_projection(x, weight, targets).loss : projection_loss(x, weight, targets);
    int64_t most = 0;
    for (const MemoryTracker::Row& row : device.memory().rows())
      most = std::max(most, row.live[static_cast<size_t>(Purpose::workspace)]);
    return most;
  };
  // Logits, their gradient in bf16, and up to 16 MiB of packed operands of the products.
  const Projection large{4096, 50257, 768};
  CHECK(peak(large, false) < int64_t{36} << 20);
  CHECK(peak(large, true) < int64_t{60} << 20);
  CHECK(peak({704, 65, 128}, true) < 4 * 704 * (65 * 6 + 128 * 8));
}

TEST_CASE("cross entropy refuses wrong shapes and dtypes, and targets outside the vocabulary") {
  const Device device = Device::cpu();
  Stream& stream = device.compute();
  auto f32 = [&](const Shape& shape) { return Tensor::zeros(shape, DType::f32, device); };
  auto targets = [&](const std::vector<int32_t>& values) {
    return Tensor::from(values, {static_cast<int64_t>(values.size())}, device);
  };
  CHECK_THROWS_WITH_AS(kernels::cross_entropy_forward({.logits = f32({3, 4}),
                                                       .targets = targets({0, -1, 4}),
                                                       .loss = f32({3}),
                                                       .log_sum = f32({3})},
                                                      stream),
                       "cross_entropy_forward: targets holds 4 at element 2; expected 0 to 3, "
                       "or -1 to ignore it",
                       ShapeError);
  CHECK_THROWS_AS(kernels::cross_entropy_forward({.logits = f32({3, 4}),
                                                  .targets = targets({0, -1, 3}),
                                                  .loss = f32({3}),
                                                  .log_sum = f32({3}),
                                                  .ignore_index = -100},
                                                 stream),
                  ShapeError);
  CHECK_THROWS_WITH_AS(kernels::cross_entropy_backward({.logits = f32({3, 4}),
                                                        .targets = targets({0, 1, 2}),
                                                        .log_sum = f32({3}),
                                                        .dloss = f32({4}),
                                                        .dlogits = f32({3, 4})},
                                                       stream),
                       "cross_entropy_backward: dloss has shape [4]; expected [3]", ShapeError);
  CHECK_THROWS_WITH_AS(kernels::projection_cross_entropy({.x = f32({3, 8}),
                                                          .weight = f32({5, 7}),
                                                          .targets = targets({0, 1, 2}),
                                                          .loss = f32({3})},
                                                         stream),
                       "projection_cross_entropy: weight has shape [5, 7]; expected [5, 8]",
                       ShapeError);
  CHECK_THROWS_AS(kernels::projection_cross_entropy({.x = f32({3, 8}),
                                                     .weight = f32({5, 8}),
                                                     .targets = targets({0, 5, 2}),
                                                     .loss = f32({3})},
                                                    stream),
                  ShapeError);
  CHECK_THROWS_WITH_AS(
      kernels::projection_cross_entropy({.x = Tensor::zeros({3, 8}, DType::bf16, device),
                                         .weight = Tensor::zeros({5, 8}, DType::bf16, device),
                                         .targets = targets({0, 1, 2}),
                                         .loss = f32({3}),
                                         .dweight = Tensor::zeros({5, 8}, DType::bf16, device)},
                                        stream),
      "projection_cross_entropy: dweight holds bf16; expected f32", DTypeError);
}

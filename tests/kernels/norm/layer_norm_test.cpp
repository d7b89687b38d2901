#include "zerograd/kernels/norm/layer_norm.h"

#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/elementwise.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr float epsilon = 1e-5f;

using Values = std::vector<double>;

// Both norms in double: layer_norm when centred, else rms_norm (beta empty, mean zero).
struct ReferenceNorm {
  int64_t N, C;
  bool centred;
  Values y, mean, rstd;

  ReferenceNorm(const Values& x, const Values& gamma, const Values& beta, bool centred)
      : N(static_cast<int64_t>(x.size() / gamma.size())),
        C(static_cast<int64_t>(gamma.size())),
        centred(centred),
        y(x.size()),
        mean(static_cast<size_t>(N)),
        rstd(static_cast<size_t>(N)) {
    for (int64_t n = 0; n < N; ++n) {
      const double* row = x.data() + n * C;
      double sum = 0.0, square = 0.0;
      for (int64_t c = 0; c < C && centred; ++c) sum += row[c];
      const double m = sum / static_cast<double>(C);
      for (int64_t c = 0; c < C; ++c) square += (row[c] - m) * (row[c] - m);
      const double r = 1.0 / std::sqrt(square / static_cast<double>(C) + double{epsilon});
      mean[static_cast<size_t>(n)] = m;
      rstd[static_cast<size_t>(n)] = r;
      for (int64_t c = 0; c < C; ++c)
        y[static_cast<size_t>(n * C + c)] = (row[c] - m) * r * gamma[static_cast<size_t>(c)] +
                                            (beta.empty() ? 0.0 : beta[static_cast<size_t>(c)]);
    }
  }
};

// Rounding error of a sum of n terms of size 1, relative to n: sqrt(n) u for random signs of the
// roundings, plus a dozen operations around it.
double sum_error(DType dtype, int64_t n) {
  return unit_roundoff(accumulator(dtype)) * (std::sqrt(static_cast<double>(n)) + 12.0);
}

Tensor like(const Tensor& x) { return Tensor::empty(x.shape(), x.dtype(), x.device()); }
Tensor statistic(const Tensor& x) {
  return Tensor::empty({x.extent(0)}, accumulator(x.dtype()), x.device());
}
Tensor column_sum(const Tensor& x) {
  return Tensor::full({x.extent(1)}, NAN, accumulator(x.dtype()), x.device());
}
struct NormCase {
  Tensor x, residual, gamma, beta, dy, dsum;
  NormCase(int64_t N, int64_t C, DType dtype, const Device& device)
      : x(random_tensor({N, C}, dtype, device, 1, -1.0, 2.0)),
        residual(random_tensor({N, C}, dtype, device, 2)),
        gamma(random_tensor({C}, dtype, device, 3, 0.5, 1.5)),
        beta(random_tensor({C}, dtype, device, 4)),
        dy(random_tensor({N, C}, dtype, device, 5)),
        dsum(random_tensor({N, C}, dtype, device, 6)) {}

  LayerNormForward forward(bool adds_residual) const {
    return {.x = x,
            .residual = adds_residual ? residual : Tensor(),
            .gamma = gamma,
            .beta = beta,
            .y = like(x),
            .sum = adds_residual ? like(x) : Tensor(),
            .mean = statistic(x),
            .rstd = statistic(x)};
  }
};

template <class F>
void for_cases(const F& f) {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (auto [N, C] :
           {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {70, 33}, {2, 1023}, {1100, 31}}) {
        INFO(level_of(device), ", ", name_of(dtype), ", N ", N, ", C ", C);
        f(NormCase(N, C, dtype, device), device);
      }
}

}  // namespace

TEST_CASE("layer_norm_forward equals the formula in double" * doctest::test_suite("every device")) {
  for_cases([](const NormCase& c, const Device& device) {
    const DType dtype = c.x.dtype();
    const LayerNormForward a = c.forward(/*adds_residual=*/false);
    kernels::layer_norm_forward(a, device.compute());
    const ReferenceNorm expected(c.x.to_doubles(), c.gamma.to_doubles(), c.beta.to_doubles(), true);
    // |x| <= 2; rstd is near 1.2 in a wide row and at most a few, but 316 = 1/sqrt(epsilon) for a
    // row of one element, whose difference from the mean is an exact zero.
    const double error = sum_error(dtype, c.x.extent(1));
    CHECK(excess(a.mean, expected.mean, 2 * error) < 1.0);
    CHECK(excess(a.rstd, expected.rstd, 0.0, 8 * error) < 1.0);
    CHECK(excess(a.y, expected.y, 16 * error, 2 * unit_roundoff(dtype)) < 1.0);
  });
}

TEST_CASE("layer_norm_forward adds the residual, rounds the sum and normalises the rounded sum" *
          doctest::test_suite("every device")) {
  for_cases([](const NormCase& c, const Device& device) {
    const LayerNormForward a = c.forward(/*adds_residual=*/true);
    kernels::layer_norm_forward(a, device.compute());
    Values sum = c.x.to_doubles();
    const Values residual = c.residual.to_doubles();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += residual[i];
    // One rounding to the accumulator and one to the dtype.
    CHECK(excess(a.sum, sum, 0.0, 1.01 * unit_roundoff(c.x.dtype())) <= 1.0);
    LayerNormForward plain = c.forward(/*adds_residual=*/false);
    plain.x = a.sum;
    kernels::layer_norm_forward(plain, device.compute());
    CHECK(same_bits(a.y, plain.y));
    CHECK(same_bits(a.mean, plain.mean));
    CHECK(same_bits(a.rstd, plain.rstd));
  });
}

TEST_CASE("rms_norm_forward of a sum gives the bits of the sum's rms_norm_forward" *
          doctest::test_suite("every device")) {
  for_cases([](const NormCase& c, const Device& device) {
    const RmsNormForward a{.x = c.x,
                           .residual = c.residual,
                           .gamma = c.gamma,
                           .y = like(c.x),
                           .sum = like(c.x),
                           .rstd = statistic(c.x)};
    kernels::rms_norm_forward(a, device.compute());
    const Tensor sum = like(c.x);
    kernels::binary({.op = BinaryOp::add, .a = c.x, .b = c.residual, .y = sum}, device.compute());
    const RmsNormForward plain{.x = sum, .gamma = c.gamma, .y = like(c.x), .rstd = statistic(c.x)};
    kernels::rms_norm_forward(plain, device.compute());
    CHECK(same_bits(a.sum, sum));
    CHECK(same_bits(a.y, plain.y));
    CHECK(same_bits(a.rstd, plain.rstd));
  });
}

TEST_CASE("norms give the same bits for any thread count, and may write over their inputs") {
  for (Isa isa : available_levels())
    for (DType dtype : floating_dtypes) {
      INFO(name_of(isa), ", ", name_of(dtype));
      std::vector<std::vector<Tensor>> results;
      for (int threads : {1, 2, 3}) {
        const Device device = Device::cpu(0, {.threads = threads, .isa = isa});
        const NormCase c(1100, 77, dtype, device);
        LayerNormForward forward = c.forward(/*adds_residual=*/true);
        if (threads == 3) forward.sum = c.x, forward.y = c.residual;
        kernels::layer_norm_forward(forward, device.compute());
        LayerNormBackward backward{.dy = c.dy,
                                   .x = forward.sum,
                                   .gamma = c.gamma,
                                   .mean = forward.mean,
                                   .rstd = forward.rstd,
                                   .dsum = c.dsum,
                                   .dx = threads == 3 ? c.dy : like(c.x),
                                   .dgamma = column_sum(c.x),
                                   .dbeta = column_sum(c.x)};
        kernels::layer_norm_backward(backward, device.compute());
        results.push_back({forward.y, forward.sum, forward.mean, forward.rstd, backward.dx,
                           backward.dgamma, backward.dbeta});
      }
      for (size_t i = 0; i < results[0].size(); ++i) {
        CHECK(same_bits(results[0][i], results[1][i]));
        CHECK(same_bits(results[0][i], results[2][i]));
      }
    }
}

TEST_CASE("layer_norm_backward skips gradients that are absent and gives the others the same bits" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    const NormCase c(100, 33, DType::f32, device);
    LayerNormBackward a{.dy = c.dy,
                        .x = c.x,
                        .gamma = c.gamma,
                        .mean = random_tensor({100}, DType::f32, device, 7),
                        .rstd = random_tensor({100}, DType::f32, device, 8, 1.0, 2.0),
                        .dx = like(c.x),
                        .dgamma = column_sum(c.x),
                        .dbeta = column_sum(c.x)};
    kernels::layer_norm_backward(a, device.compute());
    for (const auto& [dgamma, dbeta] :
         {std::pair{true, false}, std::pair{false, true}, std::pair{false, false}}) {
      LayerNormBackward b = a;
      b.dx = like(c.x);
      b.dgamma = dgamma ? column_sum(c.x) : Tensor();
      b.dbeta = dbeta ? column_sum(c.x) : Tensor();
      kernels::layer_norm_backward(b, device.compute());
      CHECK(same_bits(a.dx, b.dx));
      if (dgamma) CHECK(same_bits(a.dgamma, b.dgamma));
      if (dbeta) CHECK(same_bits(a.dbeta, b.dbeta));
    }
  }
}

TEST_CASE("rounds_twice gives the bits of a norm's backward and axpby, also in place of dsum" *
          doctest::test_suite("every device")) {
  for_cases([](const NormCase& c, const Device& device) {
    const Tensor rstd = random_tensor({c.x.extent(0)}, accumulator(c.x.dtype()), device, 8, 1.0, 2);
    const Tensor mean = random_tensor({c.x.extent(0)}, accumulator(c.x.dtype()), device, 7);
    for (const bool centred : {true, false}) {
      CAPTURE(centred);
      const auto backward = [&](const Tensor& dsum, const Tensor& dx) {
        if (centred)
          kernels::layer_norm_backward({.dy = c.dy,
                                        .x = c.x,
                                        .gamma = c.gamma,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .dsum = dsum,
                                        .dx = dx,
                                        .rounds_twice = true},
                                       device.compute());
        else
          kernels::rms_norm_backward({.dy = c.dy,
                                      .x = c.x,
                                      .gamma = c.gamma,
                                      .rstd = rstd,
                                      .dsum = dsum,
                                      .dx = dx,
                                      .rounds_twice = true},
                                     device.compute());
      };
      const Tensor expected = like(c.x), own = like(c.x), actual = like(c.x), place = like(c.x);
      backward({}, own);
      copy(c.dsum, expected, device.compute());
      kernels::axpby({.x = own, .y = expected, .a = 1.0, .b = 1.0}, device.compute());
      backward(c.dsum, actual);
      CHECK(same_bits(actual, expected));
      copy(c.dsum, place, device.compute());
      backward(place, place);
      CHECK(same_bits(place, expected));
    }
  });
}

TEST_CASE("norms of no rows give zero gradients of gamma and beta" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    const NormCase c(0, 33, DType::bf16, device);
    const Tensor none = statistic(c.x);
    kernels::layer_norm_forward(
        {.x = c.x, .gamma = c.gamma, .y = like(c.x), .mean = none, .rstd = none}, device.compute());
    const LayerNormBackward a{.dy = c.dy,
                              .x = c.x,
                              .gamma = c.gamma,
                              .mean = none,
                              .rstd = none,
                              .dx = like(c.x),
                              .dgamma = column_sum(c.x),
                              .dbeta = column_sum(c.x)};
    kernels::layer_norm_backward(a, device.compute());
    CHECK(a.dgamma.to_doubles() == Values(33));
    CHECK(a.dbeta.to_doubles() == Values(33));
  }
}

TEST_CASE("norms refuse tensors that are absent or have a wrong shape or dtype") {
  const Device device = Device::meta();
  const Tensor x = Tensor::empty({4, 8}, DType::bf16, device);
  const Tensor gamma = Tensor::empty({8}, DType::bf16, device);
  const LayerNormForward a{
      .x = x, .gamma = gamma, .y = like(x), .mean = statistic(x), .rstd = statistic(x)};
  CHECK_NOTHROW(kernels::layer_norm_forward(a, device.compute()));
  auto refused = [&](auto change) {
    LayerNormForward changed = a;
    change(changed);
    kernels::layer_norm_forward(changed, device.compute());
  };
  CHECK_THROWS_WITH_AS(refused([&](auto& b) { b.gamma = b.gamma.slice(0, 7); }),
                       "layer_norm_forward: gamma has shape [7]; expected [8]", ShapeError);
  CHECK_THROWS_WITH_AS(
      refused([&](auto& b) {
        b.x = b.x.view({2, 2, 8});
      }),
      "layer_norm_forward: x has shape [2, 2, 8]; expected [N, C], view it as that", ShapeError);
  CHECK_THROWS_WITH_AS(refused([&](auto& b) { b.mean = Tensor::empty({4}, DType::bf16, device); }),
                       "layer_norm_forward: mean holds bf16; expected f32", DTypeError);
  CHECK_THROWS_WITH_AS(refused([&](auto& b) { b.residual = x; }),
                       "layer_norm_forward: sum is absent; expected a tensor", ShapeError);
  CHECK_THROWS_WITH_AS(refused([&](auto& b) { b.sum = x; }),
                       "layer_norm_forward: sum is given without a residual; leave it absent",
                       ShapeError);
  CHECK_THROWS_AS(refused([&](auto& b) { b.beta = Tensor::empty({8}, DType::f32, device); }),
                  DTypeError);
  const LayerNormBackward backward{
      .dy = x, .x = x, .gamma = gamma, .mean = a.mean, .rstd = a.rstd, .dx = x, .dgamma = gamma};
  CHECK_THROWS_WITH_AS(kernels::layer_norm_backward(backward, device.compute()),
                       "layer_norm_backward: dgamma holds bf16; expected f32", DTypeError);
  const RmsNormForward rms{.x = x, .gamma = gamma, .y = like(x)};
  CHECK_THROWS_WITH_AS(kernels::rms_norm_forward(rms, device.compute()),
                       "rms_norm_forward: rstd is absent; expected a tensor", ShapeError);
  const RmsNormBackward rms_backward{
      .dy = x, .x = x, .gamma = gamma, .rstd = a.mean, .dx = x.slice(0, 2)};
  CHECK_THROWS_WITH_AS(kernels::rms_norm_backward(rms_backward, device.compute()),
                       "rms_norm_backward: dx has shape [2, 8]; expected [4, 8]", ShapeError);
}

TEST_CASE("layer_norm_backward's scratch depends on the shape alone and is at most 64 blocks") {
  const Device device = Device::meta(0, {.threads = 7});
  for (auto [N, blocks] : {std::pair<int64_t, int64_t>{1, 1}, {17, 2}, {1024, 64}, {100000, 64}}) {
    const Tensor x = Tensor::empty({N, 96}, DType::bf16, device);
    const LayerNormBackward a{.x = x, .dgamma = column_sum(x), .dbeta = column_sum(x)};
    CHECK(kernels::layer_norm_backward[Device::Type::cpu].workspace_bytes(a, device.traits()) ==
          blocks * 2 * 96 * int64_t{sizeof(float)});
  }
}

#include <doctest/doctest.h>

#include "tests/support/op_case.h"
#include "zerograd/kernels/norm/layer_norm.h"

// The CUDA norms have several kernels for different widths: one warp or eight for a row, rows in
// registers or not, vectors or single elements. The reference is the CPU version, which its own
// tests check in double.
using namespace zg;
using namespace zg::testing;

namespace {

struct NormResults {
  Tensor y, sum, dx, dgamma, dbeta;
};

NormResults run_norms(int64_t N, int64_t C, DType dtype, const Device& device) {
  const auto matrix = [&](uint64_t seed) { return random_tensor({N, C}, dtype, device, seed); };
  const auto empty = [&] { return Tensor::empty({N, C}, dtype, device); };
  const auto rows = [&] { return Tensor::empty({N}, DType::f32, device); };
  const auto columns = [&] { return Tensor::empty({C}, DType::f32, device); };
  const LayerNormForward forward{.x = matrix(1),
                                 .residual = matrix(2),
                                 .gamma = random_tensor({C}, dtype, device, 3, 0.5, 1.5),
                                 .beta = random_tensor({C}, dtype, device, 4),
                                 .y = empty(),
                                 .sum = empty(),
                                 .mean = rows(),
                                 .rstd = rows()};
  kernels::layer_norm_forward(forward, device.compute());
  const LayerNormBackward backward{.dy = matrix(5),
                                   .x = forward.sum,
                                   .gamma = forward.gamma,
                                   .mean = forward.mean,
                                   .rstd = forward.rstd,
                                   .dsum = matrix(6),
                                   .dx = empty(),
                                   .dgamma = columns(),
                                   .dbeta = columns()};
  kernels::layer_norm_backward(backward, device.compute());
  return {forward.y, forward.sum, backward.dx, backward.dgamma, backward.dbeta};
}

}  // namespace

TEST_CASE("layer_norm on cuda equals the CPU's at every width, and repeats its bits" *
          doctest::test_suite("every device")) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int64_t C : {768, 1024, 1026, 1600, 2048, 4096, 5001, 8192, 33000}) {
      INFO(name_of(dtype), ", C ", C);
      const int64_t N = C > 1024 ? 11 : 70;
      const NormResults actual = run_norms(N, C, dtype, Device::cuda());
      const NormResults expected = run_norms(N, C, dtype, Device::cpu());
      const double u = unit_roundoff(dtype), sums = 0x1p-24 * 300;
      CHECK(same_bits(actual.sum, expected.sum));
      CHECK(excess(actual.y, expected.y.to_doubles(), 4 * (sums + u), 2 * u) < 1.0);
      CHECK(excess(actual.dx, expected.dx.to_doubles(), 8 * (sums + u), 2 * u) < 1.0);
      CHECK(excess(actual.dgamma, expected.dgamma.to_doubles(), 70 * 8 * sums) < 1.0);
      CHECK(excess(actual.dbeta, expected.dbeta.to_doubles(), 70 * sums) < 1.0);
      const NormResults again = run_norms(N, C, dtype, Device::cuda());
      CHECK(same_bits(actual.y, again.y));
      CHECK(same_bits(actual.dx, again.dx));
      CHECK(same_bits(actual.dgamma, again.dgamma));
      CHECK(same_bits(actual.dbeta, again.dbeta));
    }
}

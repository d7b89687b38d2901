#include "zerograd/kernels/matmul/matmul.h"

#include <doctest/doctest.h>

#include "tests/support/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// Rows of operands have `gap` unused elements at the end. With a gap of 8 they stay aligned to 16
/// bytes if the extents are multiples of 8.
struct TileCase {
  int64_t M, N, K, gap;
};

/// Enough items that large tiles are used; item 0 alone uses small tiles.
void check_tiles(const TileCase& c, DType dtype, bool transpose_a, bool transpose_b) {
  INFO("M ", c.M, ", K ", c.K, ", gap ", c.gap, ", transpose a ", transpose_a, ", transpose b ",
       transpose_b);
  constexpr int64_t batch = 33;
  const Device device = Device::cuda();
  const int64_t a_rows = transpose_a ? c.K : c.M, lda = (transpose_a ? c.M : c.K) + c.gap;
  const int64_t b_rows = transpose_b ? c.N : c.K, ldb = (transpose_b ? c.K : c.N) + c.gap;
  const auto shared = [&](int64_t rows, int64_t distance, uint64_t seed) {
    return random_tensor({rows, distance}, dtype, device, seed);
  };
  Matmul m = {.a = shared(a_rows, lda, 1),
              .b = shared(b_rows, ldb, 2),
              .c = Tensor::empty({batch, c.M, c.N}, dtype, device),
              .M = c.M,
              .N = c.N,
              .K = c.K,
              .transpose_a = transpose_a,
              .transpose_b = transpose_b,
              .lda = lda,
              .ldb = ldb,
              .batch = batch,
              .stride_c = c.M * c.N};
  kernels::matmul(m, device.compute());
  const std::vector<double> all = m.c.to_doubles();
  m.batch = 1;
  m.c = Tensor::empty({c.M, c.N}, dtype, device);
  kernels::matmul(m, device.compute());
  const std::vector<double> one = m.c.to_doubles();
  const std::vector<double> a = m.a.to_doubles(), b = m.b.to_doubles();
  std::vector<double> expected(one.size());
  for (int64_t i = 0; i < c.M; ++i)
    for (int64_t j = 0; j < c.N; ++j)
      for (int64_t k = 0; k < c.K; ++k)
        expected[static_cast<size_t>(i * c.N + j)] +=
            a[static_cast<size_t>(transpose_a ? k * lda + i : i * lda + k)] *
            b[static_cast<size_t>(transpose_b ? j * ldb + k : k * ldb + j)];
  CHECK(excess(m.c, expected, 0x1p-22 * static_cast<double>(c.K), 1.01 * unit_roundoff(dtype)) < 1);
  bool same = true;
  for (size_t i = 0; i < all.size(); ++i) same = same && all[i] == one[i % one.size()];
  CHECK(same);
}

}  // namespace

TEST_CASE("matmul by tensor cores has the same bits by tiles of 128 and of 64, aligned or not" *
          doctest::test_suite("every device")) {
  for (int transposes = 0; transposes < 4; ++transposes) {
    check_tiles({136, 144, 72, 8}, DType::bf16, transposes & 1, transposes & 2);
    check_tiles({129, 130, 67, 0}, DType::bf16, transposes & 1, transposes & 2);
  }
  check_tiles({129, 136, 200, 0}, DType::f16, false, true);
}

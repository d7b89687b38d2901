#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/support/op_case.h"
#include "zerograd/kernels/matmul/matmul.h"

// Products of small integers, whose sums are exact in f32 in any order: what is read twice, left
// out or put in the wrong place shows as a wrong number.
using namespace zg;
using namespace zg::testing;

namespace {

using Entry = std::function<int64_t(int64_t row, int64_t column)>;

/// Rows `distance` apart, stored transposed or not; the gaps hold NaN, which no factor of 0 hides.
Tensor stored(int64_t rows, int64_t columns, int64_t distance, bool transpose, const Device& device,
              const Entry& entry) {
  const int64_t lines = transpose ? columns : rows;
  std::vector<bf16> values(static_cast<size_t>(lines * distance), bf16(NAN));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      values[static_cast<size_t>(transpose ? j * distance + i : i * distance + j)] =
          bf16(static_cast<float>(entry(i, j)));
  return Tensor::from(values, {lines * distance}, device);
}

int64_t scrambled(int64_t i, int64_t j) { return (i * 7 + j * 13 + i * j) % 9 - 4; }

std::vector<float> product(int64_t M, int64_t N, int64_t K, int64_t distance) {
  std::vector<float> c(static_cast<size_t>(M * distance), 3.0f);
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      int64_t sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += scrambled(i, k) * scrambled(k + 5, j);
      c[static_cast<size_t>(i * distance + j)] += static_cast<float>(sum);
    }
  return c;
}

struct EdgeSize {
  int64_t M, N, K;
};

}  // namespace

TEST_CASE("matmul of bf16 is exact on integers at every edge of a tile and of a block") {
  std::vector<EdgeSize> sizes = {
      {600, 40, 70}, {40, 300, 70}, {34, 35, 600}, {545, 289, 289}, {150, 700, 500}};
  for (int64_t M : {9, 15, 16, 17, 32, 33})
    for (int64_t N : {1, 16, 17, 31, 33})
      for (int64_t K : {1, 31, 32, 33, 257, 290}) sizes.push_back({M, N, K});
  const std::vector<Device> devices = devices_at_every_level();
  for (const auto& [M, N, K] : sizes) {
    const int64_t ldc = N + 3;
    std::vector<float> expected = product(M, N, K, ldc);
    for (int64_t i = 0; i < M; ++i)  // the gaps between rows of c keep their value
      std::fill_n(expected.begin() + i * ldc + N, 3, 3.0f);
    for (const Device& device : devices)
      for (int form = 0; form < 4; ++form) {
        const bool transpose_a = form & 1, transpose_b = form & 2;
        const int64_t lda = (transpose_a ? M : K) + 2, ldb = (transpose_b ? K : N) + 1;
        const Matmul m = {.a = stored(M, K, lda, transpose_a, device, scrambled),
                          .b = stored(K, N, ldb, transpose_b, device,
                                      [](int64_t i, int64_t j) { return scrambled(i + 5, j); }),
                          .c = Tensor::full({M * ldc}, 3.0, DType::f32, device),
                          .M = M,
                          .N = N,
                          .K = K,
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .accumulate = true,
                          .lda = lda,
                          .ldb = ldb,
                          .ldc = ldc};
        kernels::matmul(m, device.compute());
        INFO(level_of(device), ", M ", M, ", N ", N, ", K ", K, ", form ", form);
        CHECK(m.c.to_host<float>() == expected);
      }
  }
}

TEST_CASE("matmul of bf16 is exact on integers where its scratch holds a part of a or of a batch") {
  struct Case {
    EdgeSize size;
    int64_t batch;
  };
  for (const auto& [size, batch] : {Case{{1100, 40, 16000}, 1}, Case{{600, 33, 4100}, 5}}) {
    const auto [M, N, K] = size;
    const auto left = [](int64_t i) { return i % 5 - 2; };
    const auto right = [](int64_t j) { return j % 7 - 3; };
    const auto depth = [](int64_t k) { return k % 3 + 1; };
    int64_t sum = 0;
    for (int64_t k = 0; k < K; ++k) sum += depth(k);
    std::vector<float> expected;
    for (int64_t i = 0; i < batch * M; ++i)
      for (int64_t j = 0; j < N; ++j)
        expected.push_back(static_cast<float>(left(i) * right(i / M * N + j) * sum));
    for (const Device& device : devices_at_every_level())
      for (bool transpose_a : {false, true}) {
        // Items of the batch follow one another as rows of a and as columns of b stored by column.
        std::vector<bf16> a(static_cast<size_t>(batch * M * K)),
            b(static_cast<size_t>(batch * N * K));
        for (int64_t i = 0; i < batch * M; ++i)
          for (int64_t k = 0; k < K; ++k)
            a[static_cast<size_t>(transpose_a ? i / M * M * K + k * M + i % M : i * K + k)] =
                bf16(static_cast<float>(left(i) * depth(k)));
        for (int64_t j = 0; j < batch * N; ++j)
          std::fill_n(b.begin() + j * K, K, bf16(static_cast<float>(right(j))));
        const Matmul m = {.a = Tensor::from(a, {batch * M, K}, device),
                          .b = Tensor::from(b, {batch * N, K}, device),
                          .c = Tensor::zeros({batch * M, N}, DType::f32, device),
                          .M = M,
                          .N = N,
                          .K = K,
                          .transpose_a = transpose_a,
                          .transpose_b = true,
                          .batch = batch,
                          .stride_a = M * K,
                          .stride_b = N * K,
                          .stride_c = M * N};
        kernels::matmul(m, device.compute());
        INFO(level_of(device), ", M ", M, ", transpose a ", transpose_a);
        CHECK(m.c.to_host<float>() == expected);
      }
  }
}

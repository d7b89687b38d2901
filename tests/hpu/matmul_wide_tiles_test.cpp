// Products that are large enough for kernels/matmul/matmul_wide_tiles.cl, of small integers, whose
// sums are exact in any order: the bits of the CPU are expected.
#include <doctest/doctest.h>

#include "tests/support/cover.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/matmul/matmul.h"

using namespace zg;
using namespace zg::testing;

namespace {

template <class T>
Tensor small_integers(int64_t n, int64_t step, const Device& device) {
  std::vector<T> values;
  for (int64_t i = 0; i < n; ++i) values.emplace_back(static_cast<float>(i * step % 31 % 7 - 3));
  return Tensor::from(values, {n}, device);
}

struct Wide {
  int64_t M, N, K;
};

/// A product with `gap` elements after each stored row and between items, all of which begin `gap`
/// elements after an aligned address.
Matmul wide_product(const Wide& size, int order, int64_t gap, bool sums_f32, int64_t batch,
                    const Device& device) {
  Matmul m = {.M = size.M, .N = size.N, .K = size.K};
  m.transpose_a = order == 2, m.transpose_b = order == 1;
  m.lda = (m.transpose_a ? m.M : m.K) + gap;
  m.ldb = (m.transpose_b ? m.K : m.N) + gap;
  m.ldc = m.N + gap;
  m.batch = batch;
  m.stride_a = m.lda * (m.transpose_a ? m.K : m.M) + gap;
  m.stride_b = m.ldb * (m.transpose_b ? m.N : m.K) + gap;
  m.stride_c = m.ldc * m.M + gap;
  m.a = moved(small_integers<bf16>(m.stride_a * batch, 5, device), gap);
  m.b = moved(small_integers<bf16>(m.stride_b * batch, 3, device), gap);
  const int64_t c = m.stride_c * batch;
  m.c = moved(sums_f32 ? small_integers<float>(c, 7, device) : small_integers<bf16>(c, 7, device),
              gap);
  return m;
}

/// Fails unless c has the bits of the CPU.
void check_bits(const auto& product_on) {
  Matmul results[] = {product_on(Device::cpu()), product_on(Device::hpu())};
  for (const Matmul& m : results) kernels::matmul(m, m.a.device().compute());
  CHECK(same_bits(results[0].c, results[1].c));
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("products of many rows and columns are exact in every order, at any address") {
  const Wide sizes[] = {{128, 256, 33}, {129, 258, 64}, {150, 262, 98}, {131, 257, 65}};
  const int orders[] = {0, 1, 2};
  const int64_t gaps[] = {0, 1, 2};
  const bool is_f32[] = {false, true};
  for_cover(
      [](const Wide& size, int order, int64_t gap, bool sums_f32) {
        INFO("M ", size.M, ", N ", size.N, ", K ", size.K, ", order ", order, ", gap ", gap,
             ", f32 ", sums_f32);
        check_bits([&](const Device& device) {
          return wide_product(size, order, gap, sums_f32, 1, device);
        });
      },
      sizes, orders, gaps, is_f32);
}

TEST_CASE("products of many rows and columns add to c, and add a bias, for each item of a batch") {
  for (const int order : {0, 1, 2})
    for (const bool adds : {false, true}) {
      INFO("order ", order, ", adds to c ", adds);
      check_bits([&](const Device& device) {
        Matmul m = wide_product({133, 259, 40}, order, order, adds, 2, device);
        m.accumulate = adds;
        if (!adds) m.bias = small_integers<bf16>(m.N, 11, device);
        return m;
      });
    }
}

TEST_CASE("products of many rows and columns keep the sums to which gelu is applied") {
  check_bits([&](const Device& device) {
    Matmul m = wide_product({133, 259, 40}, 1, 0, false, 1, device);
    m.bias = small_integers<bf16>(m.N, 11, device);
    m.pre_activation = moved(m.c, 0);
    m.activation = Activation::gelu_tanh;
    kernels::matmul(m, device.compute());
    Tensor again = moved(m.c, 0);
    kernels::gelu_forward({m.pre_activation, again, m.activation}, device.compute());
    CHECK(same_bits(again, m.c));
    const Tensor sums = m.pre_activation;
    m.pre_activation = {}, m.activation = Activation::none;
    kernels::matmul(m, device.compute());
    CHECK(same_bits(sums, m.c));
    return m;
  });
}

TEST_SUITE_END();

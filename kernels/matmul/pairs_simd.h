#pragma once

#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu {
namespace {

/// With bf16 instructions: sum + a0 b0 + a1 b1, where each lane of a and b holds a pair of bf16.
/// The sum is rounded to f32 after each product; subnormals count as 0.
#if defined(__AVX512BF16__)
constexpr bool pairs_of_bf16 = true;
inline Vec multiply_pairs(Vec a, Vec b, Vec sum) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)a.v, (__m512bh)b.v)};
}
#else
constexpr bool pairs_of_bf16 = false;
inline Vec multiply_pairs(Vec a, Vec b, Vec sum) { return fma(a, b, sum); }
#endif

template <bool pairs>
inline Vec multiply_add(Vec a, Vec b, Vec sum) {
  return pairs ? multiply_pairs(a, b, sum) : fma(a, b, sum);
}

}  // namespace
}  // namespace zg::cpu

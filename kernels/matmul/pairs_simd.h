#pragma once

#include "zerograd/kernels/cpu/simd.h"

// Products of bf16 have the bits of the instruction vdpbf16ps on every processor. For a pair of
// neighbours along K it adds first the product of the odd elements to the sum, then that of the
// even ones. Each time it rounds to f32, to nearest even, and takes subnormal operands and results
// for 0. Where the instruction is missing, a pair is two steps of f32 in this order.
namespace zg::cpu {
namespace {

/// bf16 is multiplied in pairs of one word.
#if defined(__AVX512BF16__)
constexpr bool pairs_of_bf16 = true;
#else
constexpr bool pairs_of_bf16 = false;
#endif

/// Makes subnormal operands and results of f32 arithmetic 0 from begin() to end(), on processors
/// that have this mode with the bits of the instruction; the others use multiply_add<true>.
struct FlushMode {
  bool flushes;
#if defined(__AVX2__) && !defined(__AVX512BF16__)
  static constexpr bool exists = true;
  uint32_t before = _mm_getcsr();  // takes 30 cycles: once for many tiles
  static inline void set(uint32_t mode) { __asm__ volatile("ldmxcsr %0" : : "m"(mode) : "memory"); }
  inline void begin() const {
    constexpr uint32_t subnormal_results = 0x8000, subnormal_operands = 0x40;
    if (flushes) set(before | subnormal_results | subnormal_operands);
  }
  inline void end() const {
    if (flushes) set(before);
  }
  /// The compiler must not move the operations of these sums beyond end().
  static inline void complete(Part& sum) { __asm__ volatile("" : "+x"(sum)); }
#else
  static constexpr bool exists = false;
  inline void begin() const {}
  inline void end() const {}
  static inline void complete(Part&) {}
#endif
};

/// An operand of multiply_add<true>, widened to f32: 0 for a subnormal one, unless the mode does
/// it.
inline Part without_subnormals(Part a) {
  if (FlushMode::exists) return a;
  const Words magnitude = words_of(a) & 0x7fffffffu, sign = words_of(a) & 0x80000000u;
  return magnitude < 0x800000u ? part_of(sign) : a;
}

/// a * b + sum: of f32 or, `flushes`, of a step of bf16 (of a pair, with the instruction).
template <bool flushes>
inline Part multiply_add(Part a, Part b, Part sum) {
#if defined(__AVX512BF16__)
  if (flushes) return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#elif defined(__aarch64__)
  // NEON detects tiny results before rounding; so those near the least normal number are computed
  // again.
  const Part result = fma(a, b, sum);
  const Words magnitude = words_of(result) & 0x7fffffffu;
  if (flushes && vmaxvq_u32((Words)(magnitude - 1 < 0x800000u))) return fma_by_f64<true>(a, b, sum);
  return result;
#elif !defined(__AVX2__)
  if (flushes) return fma_by_f64<true>(a, b, sum);
#endif
  return fma(a, b, sum);
}

/// sum = a * b + sum, in the register of the sum and between begin() and end(). Written as an
/// intrinsic, GCC would copy sums to other registers and to the stack.
template <bool flushes>
inline void accumulate(Part a, Part b, Part& sum) {
#if defined(__AVX2__)
  if constexpr (!flushes) {
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return;
  }
#endif
  sum = multiply_add<flushes>(a, b, sum);
}

}  // namespace
}  // namespace zg::cpu

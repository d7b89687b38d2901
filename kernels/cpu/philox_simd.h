#pragma once

#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/elementwise/dropout_cpu.h"

// Philox4x32-10 for the *_simd.cpp sources: the vector form of runtime/random.h.
namespace zg::cpu {
namespace {

#if defined(__AVX512F__)

using Integers = __m512i;

inline Integers set1_64(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
inline Integers add_64(Integers a, Integers b) { return _mm512_add_epi64(a, b); }
inline Integers multiply(Integers a, Integers b) { return _mm512_mul_epu32(a, b); }
inline Integers upper(Integers a) { return _mm512_srli_epi64(a, 32); }
inline Integers xor3(Integers a, Integers b, Integers c) {
  return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}
/// In each 64-bit lane the lower half of a, and above it the lower half of b.
inline Integers pairs(Integers a, Integers b) {
  return _mm512_mask_shuffle_epi32(a, 0xaaaa, b, static_cast<_MM_PERM_ENUM>(0xa0));
}
inline Integers unpack_lower(Integers a, Integers b) { return _mm512_unpacklo_epi64(a, b); }
inline Integers unpack_upper(Integers a, Integers b) { return _mm512_unpackhi_epi64(a, b); }
/// The order of counters in the lanes; the unpacking at the end of philox() restores the natural
/// order.
inline Integers counter_order() { return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); }
inline Mask at_least(Integers words, uint32_t threshold) {
  return _mm512_cmpge_epu32_mask(words, _mm512_set1_epi32(static_cast<int>(threshold)));
}

#else

using Integers = __m256i;

inline Integers set1_64(uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
inline Integers add_64(Integers a, Integers b) { return _mm256_add_epi64(a, b); }
inline Integers multiply(Integers a, Integers b) { return _mm256_mul_epu32(a, b); }
inline Integers upper(Integers a) { return _mm256_srli_epi64(a, 32); }
inline Integers xor3(Integers a, Integers b, Integers c) {
  return _mm256_xor_si256(_mm256_xor_si256(a, c), b);
}
inline Integers pairs(Integers a, Integers b) {
  return _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa);
}
inline Integers unpack_lower(Integers a, Integers b) { return _mm256_unpacklo_epi64(a, b); }
inline Integers unpack_upper(Integers a, Integers b) { return _mm256_unpackhi_epi64(a, b); }
inline Integers counter_order() { return _mm256_setr_epi64x(0, 2, 1, 3); }
inline Mask at_least(Integers words, uint32_t threshold) {
  const __m256i t = _mm256_set1_epi32(static_cast<int>(threshold));
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(words, t), words))};
}

#endif

/// The number of consecutive elements for which one call of philox() returns words.
constexpr int64_t philox_elements = 2 * Vec::lanes;

/// The words of philox_elements consecutive elements; the first one is word 0 of `counter`.
struct PhiloxWords {
  Integers first, second;
};

// Each 64-bit lane computes one counter. A product of two 32-bit words fills its 64-bit lane. Its
// lower word need not be extracted, because the next multiplication ignores upper halves. So no
// round needs a shuffle.
inline PhiloxWords philox(const PhiloxKeys& keys, int64_t counter, uint32_t second, uint32_t third,
                          uint32_t fourth) {
  Integers c0 = add_64(set1_64(static_cast<uint64_t>(counter)), counter_order());
  Integers c1 = set1_64(second), c2 = set1_64(third), c3 = set1_64(fourth);
  const Integers m0 = set1_64(Philox::multiplier0), m1 = set1_64(Philox::multiplier1);
  for (int round = 0; round < Philox::rounds; ++round) {
    const Integers p0 = multiply(c0, m0), p1 = multiply(c2, m1);
    c0 = xor3(upper(p1), c1, set1_64(keys.first[round]));
    c1 = p1;
    c2 = xor3(upper(p0), c3, set1_64(keys.second[round]));
    c3 = p0;
  }
  const Integers low = pairs(c0, c1), high = pairs(c2, c3);
  return {unpack_lower(low, high), unpack_upper(low, high)};
}

inline PhiloxWords philox(const DropoutMask& mask, uint32_t sample, int64_t counter) {
  return philox(mask.keys, counter, sample, mask.step, mask.site);
}

}  // namespace
}  // namespace zg::cpu

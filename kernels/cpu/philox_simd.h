#pragma once

#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/elementwise/dropout_cpu.h"

// Philox4x32-10 for the *_simd.cpp sources: the vector form of runtime/random.h.
namespace zg::cpu {
namespace {

using Doublewords [[gnu::vector_size(4 * part_lanes)]] = uint64_t;

// The product of the lower halves of 64-bit lanes; the even, and the odd lanes of a and b in turns;
// the order of counters in the lanes, which these turns make the natural one.
#if defined(__AVX512F__)
inline Doublewords multiply(Doublewords a, Doublewords b) {
  return (Doublewords)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}
inline Words even_lanes(Doublewords a, Doublewords b) {
  return (Words)__builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
}
inline Words odd_lanes(Doublewords a, Doublewords b) {
  return (Words)__builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
}
constexpr Doublewords counter_order = {0, 4, 1, 5, 2, 6, 3, 7};
#elif defined(__AVX2__)
inline Doublewords multiply(Doublewords a, Doublewords b) {
  return (Doublewords)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
inline Words even_lanes(Doublewords a, Doublewords b) {
  return (Words)__builtin_shufflevector(a, b, 0, 4, 2, 6);
}
inline Words odd_lanes(Doublewords a, Doublewords b) {
  return (Words)__builtin_shufflevector(a, b, 1, 5, 3, 7);
}
constexpr Doublewords counter_order = {0, 2, 1, 3};
#else
inline Doublewords multiply(Doublewords a, Doublewords b) {
  return (a & 0xffffffffu) * (b & 0xffffffffu);
}
inline Words even_lanes(Doublewords a, Doublewords b) {
  return (Words)__builtin_shufflevector(a, b, 0, 2);
}
inline Words odd_lanes(Doublewords a, Doublewords b) {
  return (Words)__builtin_shufflevector(a, b, 1, 3);
}
constexpr Doublewords counter_order = {0, 1};
#endif

/// 16 random words.
struct WordVec {
  Words part[parts];
};
inline Mask at_least(const WordVec& words, uint32_t threshold) {
  return each<Mask>([&](int i) { return at_least(words.part[i], Words{} + threshold); });
}

/// The number of consecutive elements for which one call of philox() returns words.
constexpr int64_t philox_elements = 2 * Vec::lanes;

/// The words of philox_elements consecutive elements; the first one is word 0 of `counter`.
struct PhiloxWords {
  WordVec first, second;
};

// Each 64-bit lane computes one counter. A product of two 32-bit words fills its 64-bit lane. Its
// lower word need not be extracted, because the next multiplication ignores upper halves. So no
// round needs a shuffle.
inline PhiloxWords philox(const PhiloxKeys& keys, int64_t counter, uint32_t second, uint32_t third,
                          uint32_t fourth) {
  const auto all = [](uint64_t x) { return Doublewords{} + x; };
  const Doublewords m0 = all(Philox::multiplier0), m1 = all(Philox::multiplier1);
  Words words[2 * parts];
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i) {
    Doublewords c0 = counter_order + (static_cast<uint64_t>(counter) + i * part_lanes / 2);
    Doublewords c1 = all(second), c2 = all(third), c3 = all(fourth);
    for (int round = 0; round < Philox::rounds; ++round) {
      const Doublewords p0 = multiply(c0, m0), p1 = multiply(c2, m1);
      c0 = (p1 >> 32) ^ c1 ^ all(keys.first[round]);
      c1 = p1;
      c2 = (p0 >> 32) ^ c3 ^ all(keys.second[round]);
      c3 = p0;
    }
    const Doublewords low = (c0 & 0xffffffffu) | c1 << 32, high = (c2 & 0xffffffffu) | c3 << 32;
    words[2 * i] = even_lanes(low, high);
    words[2 * i + 1] = odd_lanes(low, high);
  }
  PhiloxWords result;
  for (int i = 0; i < parts; ++i) {
    result.first.part[i] = words[i];
    result.second.part[i] = words[parts + i];
  }
  return result;
}

inline PhiloxWords philox(const DropoutMask& mask, uint32_t sample, int64_t counter) {
  return philox(mask.keys, counter, sample, mask.step, mask.site);
}

}  // namespace
}  // namespace zg::cpu

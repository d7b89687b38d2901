#pragma once

#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/elementwise/dropout_cpu.h"

// Philox4x32-10 for the *_simd.cpp sources: the vector form of runtime/random.h.
namespace zg::cpu {
namespace {

/// The product of the lower halves of 64-bit lanes.
inline Doublewords multiply(Doublewords a, Doublewords b) {
#if defined(__AVX512F__)
  return (Doublewords)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Doublewords)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/// The number of consecutive elements for which one call of philox() returns words.
constexpr int64_t philox_elements = 2 * Vec::lanes;

/// The words of philox_elements consecutive elements; the first one is word 0 of `counter`.
struct PhiloxWords {
  Words part[2 * parts];
};

// Each 64-bit lane computes one counter. A product of two 32-bit words fills its 64-bit lane. Its
// lower word need not be extracted, because the next multiplication ignores upper halves. So no
// round needs a shuffle. The order of counters in the lanes is the one that the last shuffles make
// the natural one.
inline PhiloxWords philox(const PhiloxKeys& keys, int64_t counter, uint32_t second, uint32_t third,
                          uint32_t fourth) {
  constexpr int lanes = part_lanes / 2;
  constexpr auto indices = std::make_index_sequence<lanes>();
  const auto all = [](uint64_t x) { return Doublewords{} + x; };
  const Doublewords m0 = all(Philox::multiplier0), m1 = all(Philox::multiplier1);
  Doublewords order;
  for (int i = 0; i < lanes; ++i) order[i] = i / 2 + i % 2 * lanes / 2;
  PhiloxWords words;
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i) {
    Doublewords c0 = order + (static_cast<uint64_t>(counter) + i * lanes);
    Doublewords c1 = all(second), c2 = all(third), c3 = all(fourth);
    for (int round = 0; round < Philox::rounds; ++round) {
      const Doublewords p0 = multiply(c0, m0), p1 = multiply(c2, m1);
      c0 = (p1 >> 32) ^ c1 ^ all(keys.first[round]);
      c1 = p1;
      c2 = (p0 >> 32) ^ c3 ^ all(keys.second[round]);
      c3 = p0;
    }
    const Doublewords low = (c0 & 0xffffffffu) | c1 << 32, high = (c2 & 0xffffffffu) | c3 << 32;
    words.part[2 * i] = (Words)even_blocks<1>(low, high, indices);
    words.part[2 * i + 1] = (Words)odd_blocks<1>(low, high, indices);
  }
  return words;
}

/// The dropout factors, 0 or 1 / (1 - p), of n weights from `first` on, in a buffer of at least
/// factor_room(n) elements; returns the address of the first one.
constexpr int64_t factor_room(int64_t n) { return n + 3 + philox_elements; }
inline const float* fill_factors(float* buffer, const DropoutMask& mask, uint32_t sample,
                                 int64_t first, int64_t n) {
  const int64_t skipped = first % 4;
  for (int64_t i = 0; i < skipped + n; i += philox_elements) {
    const PhiloxWords words = philox(mask.keys, (first + i) / 4, sample, mask.step, mask.site);
    for (int half = 0; half < 2; ++half) {
      const Mask kept = each<Mask>([&](int part) {
        return at_least(words.part[half * parts + part], Words{} + mask.threshold);
      });
      store(buffer + i + half * Vec::lanes, select(kept, mask.scale, 0.0));
    }
  }
  return buffer + skipped;
}

}  // namespace
}  // namespace zg::cpu

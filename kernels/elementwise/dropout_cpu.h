#pragma once

#include <cstdint>

#include "zerograd/kernels/cpu/philox.h"
#include "zerograd/kernels/elementwise/dropout.h"

namespace zg::cpu {

/// A DropoutKey prepared for the kernels: round keys of Philox, threshold and scale. Plain data,
/// because sources with vector instructions include it.
struct DropoutMask {
  uint64_t seed;
  PhiloxKeys keys;
  uint32_t step, sample, site;
  /// An element is dropped if its word is below it: uniform(word) < probability.
  uint32_t threshold;
  float probability;  ///< 0: all elements are kept, and no random words are computed
  float scale;        ///< 1 / (1 - probability)
};

DropoutMask dropout_mask(const DropoutKey& key, float probability);

/// In plain C++; kernels/cpu/philox_simd.h has the vector code.
/// factor[i] = element first + i of the sample is kept ? 1 / (1 - probability) : 0.
template <class A>
void fill_factors(A* factor, const DropoutMask& mask, uint32_t sample, int64_t first, int64_t n) {
  const A scale = A(1) / (A(1) - static_cast<A>(mask.probability));
  Philox::Block words = {};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t element = first + i;
    if (mask.probability > 0.0f && (i == 0 || element % 4 == 0))
      words = Philox::block({static_cast<uint32_t>(element / 4), sample, mask.step, mask.site},
                            mask.seed);
    const bool kept = uniform(words[static_cast<size_t>(element % 4)]) >= mask.probability;
    factor[i] = kept ? scale : A(0);
  }
}

/// The arguments for elements [first, first + n) of one sample.
struct DropoutRange {
  const void* x;
  const void* residual;  ///< null when absent
  void* y;
  uint32_t sample;
  int64_t first, n;
};

/// By dtype: f64, f32, bf16, f16.
struct DropoutTable {
  void (*apply[4])(const DropoutRange&, const DropoutMask&);
};

}  // namespace zg::cpu

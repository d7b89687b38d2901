#pragma once

#include "zerograd/kernels/elementwise/dropout_cpu.h"

// Dropout factors in plain C++; kernels/cpu/philox_simd.h has the vector code.
namespace zg::cpu {

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

}  // namespace zg::cpu

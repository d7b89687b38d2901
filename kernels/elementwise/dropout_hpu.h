#pragma once

#include <cmath>
#include <cstdint>

namespace zg::hpu {

/// The threshold of kept() in kernels/hpu/philox.clh, which drops an element if word < threshold.
/// uniform(word) < p is equivalent to (word >> 8) < ceil(p * 2^24); the product is exact.
inline uint32_t dropout_threshold(float probability) {
  return static_cast<uint32_t>(std::ceil(probability * 0x1p24f)) << 8;
}

/// The factor of kept elements. The host divides because its division is correctly rounded.
inline float dropout_scale(float probability) { return 1.0f / (1.0f - probability); }

}  // namespace zg::hpu

#pragma once

#include <cstdint>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg {

/// The `alibi_slopes` of attention for a model of `heads` heads, one for each head. A tensor
/// parallel rank takes the slopes of its own heads. Press et al. 2022, arXiv:2108.12409, section 3:
/// for n heads, n a power of two, the powers 1 to n of 2^(-8/n). Other counts have the slopes of
/// the next lower power of two n, then every other slope of 2n heads, from the first on. Each slope
/// is exact but for one rounding to f32. Throws ConfigError for less than one head.
ZG_API std::vector<float> alibi_slopes(int64_t heads);

}  // namespace zg

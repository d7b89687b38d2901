#pragma once

#include <cstdint>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg {

/// What a model of so many heads gives attention as `alibi_slopes`, a head each; tensor parallel
/// ranks have their heads' part of it. Press et al. 2022, arXiv:2108.12409, section 3: the powers
/// 1 to n of 2^(-8/n) for n heads, a power of two. Other counts have those of the next lower n,
/// then every other one of 2n heads', from the first on. Each is exact but for one rounding to f32.
/// Throws ConfigError for less than one head.
ZG_API std::vector<float> alibi_slopes(int64_t heads);

}  // namespace zg

#pragma once

#include <cstdint>

namespace zg::cpu {

/// The sums of squares of `count` granules of x, in f64, in the order that zg::SumOfSquares states.
using GranuleSums = void (*)(const void* x, int64_t count, double* sums);

/// Indexed by f64, f32, bf16, f16; null where there are no vectors and the plain one is used.
struct GranuleTable {
  GranuleSums sums[4];
};

}  // namespace zg::cpu

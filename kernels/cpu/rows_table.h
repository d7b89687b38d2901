#pragma once

#include <cstdint>

namespace zg::cpu {

// Exponentials are summed in the accumulator type over blocks of this many elements, the blocks in
// f64.
inline constexpr int64_t exp_sum_block = 1024;

/// Compiled per instruction set. The first index is 1 where x is bf16, the second where y is.
struct RowTable {
  float (*max[2])(const void* x, int64_t n);
  double (*exp_sum[2])(const void* x, float shift, int64_t n);
  void (*scaled_exp[2][2])(const void* x, float shift, float scale, void* y, int64_t n);
};

}  // namespace zg::cpu

#include "zerograd/kernels/hpu/tile.clh"

typedef float f32_t;
typedef bf16 bf16_t;

/// sum = (first ? 0 : sum) + leaf, where leaf is rounded to `rounding` first.
#define FOLD(leaf_type, rounding, sum_type)                                                   \
  element_kernel void fold_##leaf_type##_##rounding##_##sum_type(                             \
      __global const leaf_type##_t* leaf, __global sum_type##_t* sum, long n, int first) {    \
    const long i = element_index();                                                           \
    if (i >= n) return;                                                                       \
    const float term = widened_##rounding(narrowed_##rounding(widened_##leaf_type(leaf[i]))); \
    sum[i] = narrowed_##sum_type((first ? 0.0f : widened_##sum_type(sum[i])) + term);         \
  }

FOLD(f32, f32, f32)
FOLD(f32, f32, bf16)
FOLD(f32, bf16, f32)
FOLD(f32, bf16, bf16)
FOLD(bf16, f32, f32)
FOLD(bf16, f32, bf16)
FOLD(bf16, bf16, f32)
FOLD(bf16, bf16, bf16)

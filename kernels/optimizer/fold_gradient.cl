#include "zerograd/kernels/hpu/tile.clh"

typedef float f32_t;
typedef bf16 bf16_t;
typedef float8 f32_t8;
typedef ushort8 bf16_t8;

/// sum = (first ? 0 : sum) + leaf, where leaf is rounded to `rounding` first, for up to 16 tensors:
/// their addresses, numbers of elements, and `first` as bits. `arena` is any address of theirs: the
/// driver makes all memory of the arena resident for an argument in it.
#define FOLD(leaf_type, rounding, sum_type)                                                   \
  element_kernel void fold_##leaf_type##_##rounding##_##sum_type(                             \
      __global const uchar* arena, long16 leaves, long16 sums, long16 counts, long16 ends,    \
      uint firsts) {                                                                          \
    (void)arena;                                                                              \
    long index;                                                                               \
    const int k = tensor_of_group(ends, &index);                                              \
    take_span_of(index, counts[k]);                                                           \
    __global sum_type##_t* const sum = (__global sum_type##_t*)sums[k] + begin;               \
    const leaf_type##_t8 terms =                                                              \
        load_span((__global const leaf_type##_t*)leaves[k] + begin, count);                   \
    sum_type##_t8 totals = 0;                                                                 \
    if (!(firsts >> k & 1)) totals = load_span(sum, count);                                   \
    for_span(e) {                                                                             \
      const float term =                                                                      \
          widened_##rounding(narrowed_##rounding(widened_##leaf_type(terms[e])));             \
      totals[e] = narrowed_##sum_type(widened_##sum_type(totals[e]) + term);                  \
    }                                                                                         \
    store_span(sum, totals, count);                                                           \
  }

FOLD(f32, f32, f32)
FOLD(f32, f32, bf16)
FOLD(f32, bf16, f32)
FOLD(f32, bf16, bf16)
FOLD(bf16, f32, f32)
FOLD(bf16, f32, bf16)
FOLD(bf16, bf16, f32)
FOLD(bf16, bf16, bf16)

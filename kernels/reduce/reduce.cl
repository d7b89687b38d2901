#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/reduce/sums.clh"

#if defined(ZG_I32) || defined(ZG_I64)
typedef long max_state;
#define max_start LONG_MIN
#define max_of(x) ((long)(x))
#define max_join(a, b) max(a, b)
#else
typedef float max_state;
#define max_start (-INFINITY)
#define max_of(x) widened(x)
#define max_join larger
#endif
#define max_result(state, count) (state)

// The kernels of an op (sum, max) for one dtype of results. Results are divided by `count`, 1
// except for means. Offsets in x: kept_* leads to the first element of result r, the other nest
// from there to its elements.
//   OP_group_TO  one work-group for each result; work-item i takes elements i, i + 256, ...
//   OP_chunk_TO  one work-item for each result and chunk of its elements (get_group_id(1)).
//                Neighbouring work-items have neighbouring results. With several chunks it writes
//                states to `parts`.
//   OP_join_TO   joins the states of the chunks in order.
#define REDUCE(op, to, stored, to_c)                                                       \
  element_kernel void op##_group_##to(                                                     \
      __global const real* x, __global to_c* y, long elements, float count, int kept_rank, \
      long8 kept_extents, long8 kept_strides, int rank, long8 extents, long8 strides) {    \
    __local op##_state parts[ZG_GROUP];                                                    \
    const uint item = get_local_id(0);                                                     \
    const long8 none = 0;                                                                  \
    const long r = get_group_id(0);                                                        \
    const long begin = located(r, kept_rank, kept_extents, kept_strides, none, none).s0;   \
    op##_state state = op##_start;                                                         \
    for (long i = item; i < elements; i += ZG_GROUP) {                                     \
      const long at = begin + located(i, rank, extents, strides, none, none).s0;           \
      state = op##_join(state, op##_of(x[at]));                                            \
    }                                                                                      \
    parts[item] = state;                                                                   \
    for (uint half_size = ZG_GROUP / 2; half_size > 0; half_size /= 2) {                   \
      barrier(CLK_LOCAL_MEM_FENCE);                                                        \
      if (item < half_size) parts[item] = op##_join(parts[item], parts[item + half_size]); \
    }                                                                                      \
    if (item == 0) y[r] = stored(op##_result(parts[0], count));                            \
    (void)count;                                                                           \
  }                                                                                        \
  element_kernel void op##_chunk_##to(                                                     \
      __global const real* x, __global to_c* y, __global op##_state* parts, long results,  \
      long elements, long chunk, float count, int kept_rank, long8 kept_extents,           \
      long8 kept_strides, int rank, long8 extents, long8 strides) {                        \
    const long r = element_index();                                                        \
    if (r >= results) return;                                                              \
    const long8 none = 0;                                                                  \
    const long begin = located(r, kept_rank, kept_extents, kept_strides, none, none).s0;   \
    const long first = get_group_id(1) * chunk, last = min(first + chunk, elements);       \
    op##_state state = op##_start;                                                         \
    for (long i = first; i < last; ++i) {                                                  \
      const long at = begin + located(i, rank, extents, strides, none, none).s0;           \
      state = op##_join(state, op##_of(x[at]));                                            \
    }                                                                                      \
    if (parts)                                                                             \
      parts[get_group_id(1) * results + r] = state;                                        \
    else                                                                                   \
      y[r] = stored(op##_result(state, count));                                            \
    (void)count;                                                                           \
  }                                                                                        \
  element_kernel void op##_join_##to(__global const op##_state* parts, __global to_c* y,   \
                                     long results, long chunks, float count) {             \
    const long r = element_index();                                                        \
    if (r >= results) return;                                                              \
    op##_state state = op##_start;                                                         \
    for (long c = 0; c < chunks; ++c) state = op##_join(state, parts[c * results + r]);    \
    y[r] = stored(op##_result(state, count));                                              \
    (void)count;                                                                           \
  }

#if defined(ZG_I32) || defined(ZG_I64)
REDUCE(sum, i64, (long), long)
REDUCE(max, i64, (long), long)
#else
REDUCE(sum, f32, , float)
REDUCE(max, f32, , float)
#endif
#ifdef ZG_I32
REDUCE(sum, i32, (int), int)
REDUCE(max, i32, (int), int)
#endif
#ifdef ZG_BF16
REDUCE(sum, bf16, narrowed, bf16)
REDUCE(max, bf16, narrowed, bf16)
#endif

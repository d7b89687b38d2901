#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

#if defined(ZG_I32) || defined(ZG_I64)

#ifdef ZG_I32
typedef int real;
#else
typedef long real;
#endif
typedef ulong sum_state;  // wraps around
#define sum_start 0
#define sum_of(x) ((ulong)(long)(x))
#define sum_join(a, b) ((a) + (b))
#define sum_result(state, count) (state)

#else

/// A sum in f32 and the sum of its rounding errors: Ogita, Rump, Oishi 2005, "Accurate sum and dot
/// product", algorithm 4.4 (Sum2), with the TwoSum of Knuth 1969. It is about as accurate as a sum
/// in twice the precision, for devices without doubles.
typedef float2 sum_state;
#define sum_start ((float2)(0.0f, 0.0f))
#define sum_of(x) ((float2)(widened(x), 0.0f))
static inline float2 sum_join(float2 a, float2 b) {
  const float sum = a.s0 + b.s0, b_rounded = sum - a.s0;
  const float lost = (a.s0 - (sum - b_rounded)) + (b.s0 - b_rounded);
  return (float2)(sum, a.s1 + b.s1 + lost);
}
/// If the sum is infinite, the error term is NaN and is ignored.
static inline float sum_result(float2 state, float count) {
  return (isfinite(state.s0) ? state.s0 + state.s1 : state.s0) / count;
}

typedef float max_state;
#define max_start (-INFINITY)
#define max_of(x) widened(x)
#define max_join larger
#define max_result(state, count) (state)

#endif

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
#else
REDUCE(sum, f32, , float)
REDUCE(max, f32, , float)
#endif
#ifdef ZG_I32
REDUCE(sum, i32, (int), int)
#endif
#ifdef ZG_BF16
REDUCE(sum, bf16, narrowed, bf16)
REDUCE(max, bf16, narrowed, bf16)
#endif

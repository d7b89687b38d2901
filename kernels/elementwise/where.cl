#include "zerograd/kernels/hpu/nest.clh"

// The kernel copies bits, so all dtypes of one size use the same kernel.
#define WHERE(size, bits)                                                                      \
  element_kernel void where_##size(__global const uchar* condition, __global const bits* a,    \
                                   __global const bits* b, __global bits* y, long n, int rank, \
                                   long8 extents, long8 condition_strides, long8 a_strides,    \
                                   long8 b_strides) {                                          \
    take_span(n);                                                                              \
    const long3 strides = (long3)(condition_strides.s0, a_strides.s0, b_strides.s0);           \
    const int run = is_run(count, rank, extents.s0, strides), step = run ? SPAN : 1;           \
    for (long i = begin; i < begin + count; i += step) {                                       \
      const long3 at = located(i, rank, extents, condition_strides, a_strides, b_strides);     \
      const uchar8 conditions = load_run(condition + at.s0, run && strides.s0 != 0);           \
      const bits##8 as = load_run(a + at.s1, run && strides.s1 != 0);                          \
      const bits##8 bs = load_run(b + at.s2, run && strides.s2 != 0);                          \
      bits##8 ys;                                                                              \
      for_span(e) ys[e] = conditions[e] ? as[e] : bs[e];                                       \
      store_span(y + i, ys, step);                                                             \
    }                                                                                          \
  }

WHERE(1, uchar)
WHERE(2, ushort)
WHERE(4, int)
WHERE(8, long)

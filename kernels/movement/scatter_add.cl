#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

#if defined(ZG_I32)
typedef uint real, wide;  // wraps around
#elif defined(ZG_I64)
typedef ulong real, wide;
#else
typedef float wide;
#endif
#if defined(ZG_I32) || defined(ZG_I64)
#define widened
#define narrowed
#endif

/// scatter_add_* has one work-item for each element of y that an index can select. The work-item
/// compares the `extent` indices on the element's line along the axis with the element's own
/// position there, and adds the elements of x whose index is equal. It adds in rising j in f32 and
/// rounds once, so the bits do not depend on the order of the work-items. The strides y_strides,
/// index_strides, x_strides and `axis` give, for a work-item, the offset of its element of y, of
/// the first index and the first element of x on its line, and its position along the axis.
/// check_* reports indices outside the axis.
#define SCATTER_ADD(index_type, index_c)                                                           \
  element_kernel void check_##index_type(__global const index_c* index, long n, long limit,        \
                                         fault_parameters) {                                       \
    const long i = element_index();                                                                \
    if (i < n && (index[i] < 0 || index[i] >= limit)) report(fault_arguments, i, index[i], limit); \
  }                                                                                                \
  element_kernel void scatter_add_##index_type(                                                    \
      __global const real* x, __global const index_c* index, __global real* y, long n, int rank,   \
      long8 extents, long8 y_strides, long8 index_strides, long8 x_strides, long8 axis,            \
      long extent, long index_stride, long x_stride) {                                             \
    const long i = element_index();                                                                \
    if (i >= n) return;                                                                            \
    const long3 at = located(i, rank, extents, y_strides, index_strides, x_strides);               \
    const long row = located(i, rank, extents, axis, (long8)(0), (long8)(0)).s0;                   \
    wide sum = widened(y[at.s0]);                                                                  \
    for (long j = 0; j < extent; ++j)                                                              \
      if (index[at.s1 + j * index_stride] == row) sum += widened(x[at.s2 + j * x_stride]);         \
    y[at.s0] = narrowed(sum);                                                                      \
  }

SCATTER_ADD(i32, int)
SCATTER_ADD(i64, long)

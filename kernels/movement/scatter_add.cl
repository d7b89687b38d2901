#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

/// One work-item for each element of y that an index can name. It looks through the `extent`
/// indices of its line in rising j and adds the elements of x that name it, in f32, rounding once;
/// so the bits are fixed. y_strides leads to the element of y, index_strides and x_strides to the
/// first index and x of the line, `axis` to the element's index along the axis. check_* reports
/// indices outside the axis.
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
    float sum = widened(y[at.s0]);                                                                 \
    for (long j = 0; j < extent; ++j)                                                              \
      if (index[at.s1 + j * index_stride] == row) sum += widened(x[at.s2 + j * x_stride]);         \
    y[at.s0] = narrowed(sum);                                                                      \
  }

SCATTER_ADD(i32, int)
SCATTER_ADD(i64, long)

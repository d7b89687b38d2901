#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

/// A work-item an element of y that indices may name: it alone adds to it, in rising j, and rounds
/// once. The nest leads to y, and to the first of its index and x; `axis` is its stride 1 along the
/// indexed axis. An index that is outside has been reported and meets no element.
#define SCATTER_ADD(index_type, index_c)                                                           \
  element_kernel void check_##index_type(__global const index_c* index, long n, long limit,        \
                                         fault_parameters) {                                       \
    const long i = element_index();                                                                \
    if (i < n && (index[i] < 0 || index[i] >= limit)) report(fault_arguments, i, index[i], limit); \
  }                                                                                                \
  element_kernel void scatter_add_##index_type(                                                    \
      __global const real* x, __global const index_c* index, __global real* y, long n, int rank,   \
      long8 extents, long8 y_strides, long8 index_strides, long8 x_strides, long8 axis,            \
      long extent, long index_along, long x_along) {                                               \
    const long i = element_index();                                                                \
    if (i >= n) return;                                                                            \
    const long3 at = located(i, rank, extents, y_strides, index_strides, x_strides);               \
    const long row = located(i, rank, extents, axis, (long8)(0), (long8)(0)).s0;                   \
    float sum = widened(y[at.s0]);                                                                 \
    for (long j = 0; j < extent; ++j)                                                              \
      if (index[at.s1 + j * index_along] == row) sum += widened(x[at.s2 + j * x_along]);           \
    y[at.s0] = narrowed(sum);                                                                      \
  }

SCATTER_ADD(i32, int)
SCATTER_ADD(i64, long)

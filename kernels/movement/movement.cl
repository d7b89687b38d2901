#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

/// y = x; x and y may have any strides.
#define STRIDED_COPY(size, bits)                                                            \
  element_kernel void strided_copy_##size(__global const bits* x, __global bits* y, long n, \
                                          int rank, long8 extents, long8 x_strides,         \
                                          long8 y_strides) {                                \
    const long i = element_index();                                                         \
    if (i >= n) return;                                                                     \
    const long3 at = located(i, rank, extents, x_strides, y_strides, (long8)(0));           \
    y[at.s1] = x[at.s0];                                                                    \
  }

/// y[i] is the element of x at index[i] along one axis of x, which has `extent` elements, `stride`
/// apart. There is a work-item for each of the n elements of y. x_strides gives the offset of the
/// element at index 0 of that axis, index_strides that of the index. An index outside the axis is
/// reported and read as 0.
#define GATHER(size, bits, index_type, index_c)                                                  \
  element_kernel void gather_##size##_##index_type(                                              \
      __global const bits* x, __global const index_c* index, __global bits* y, long n, int rank, \
      long8 extents, long8 x_strides, long8 index_strides, long extent, long stride,             \
      fault_parameters) {                                                                        \
    const long i = element_index();                                                              \
    if (i >= n) return;                                                                          \
    const long3 at = located(i, rank, extents, x_strides, index_strides, (long8)(0));            \
    long row = index[at.s1];                                                                     \
    if (row < 0 || row >= extent) {                                                              \
      report(fault_arguments, at.s1, row, extent);                                               \
      row = 0;                                                                                   \
    }                                                                                            \
    if (extent > 0) y[i] = x[at.s0 + row * stride];                                              \
  }

// Elements are only copied, so the kernels depend on their size, not on their dtype.
#define MOVEMENT(size, bits)   \
  STRIDED_COPY(size, bits)     \
  GATHER(size, bits, i32, int) \
  GATHER(size, bits, i64, long)

MOVEMENT(1, uchar)
MOVEMENT(2, ushort)
MOVEMENT(4, uint)
MOVEMENT(8, ulong)

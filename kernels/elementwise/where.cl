#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

// The kernel copies bits, so all dtypes of one size use the same kernel.
#define WHERE(size, bits)                                                                      \
  element_kernel void where_##size(__global const uchar* condition, __global const bits* a,    \
                                   __global const bits* b, __global bits* y, long n, int rank, \
                                   long8 extents, long8 condition_strides, long8 a_strides,    \
                                   long8 b_strides) {                                          \
    const long i = element_index();                                                            \
    if (i >= n) return;                                                                        \
    const long3 at = located(i, rank, extents, condition_strides, a_strides, b_strides);       \
    y[i] = condition[at.s0] ? a[at.s1] : b[at.s2];                                             \
  }

WHERE(1, uchar)
WHERE(2, ushort)
WHERE(4, uint)
WHERE(8, ulong)

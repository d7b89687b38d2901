#include "kernels/hpu/nest.clh"
#include "kernels/hpu/tile.clh"

/// A work-item an element of y: it alone adds to it, in rising j, and rounds once. An index that is
/// outside has been reported and meets no element.
#define SCATTER_ADD(index_type, index_c)                                                           \
  element_kernel void check_##index_type(__global const index_c* index, long n, long limit,        \
                                         fault_parameters) {                                       \
    const long i = element_index();                                                                \
    if (i < n && (index[i] < 0 || index[i] >= limit)) report(fault_arguments, i, index[i], limit); \
  }                                                                                                \
  element_kernel void scatter_add_##index_type(__global const real* x,                             \
                                               __global const index_c* index, __global real* y,    \
                                               long n, long extent, long inner, long y_extent) {   \
    const long i = element_index();                                                                \
    if (i >= n) return;                                                                            \
    const long before = quotient(i, inner), outer = quotient(before, y_extent);                    \
    const long row = before - outer * y_extent;                                                    \
    const long begin = outer * extent * inner + i - before * inner;                                \
    const long end = begin + extent * inner;                                                       \
    float sum = widened(y[i]);                                                                     \
    for (long at = begin; at < end; at += inner)                                                   \
      if (index[at] == row) sum += widened(x[at]);                                                 \
    y[i] = narrowed(sum);                                                                          \
  }

SCATTER_ADD(i32, int)
SCATTER_ADD(i64, long)

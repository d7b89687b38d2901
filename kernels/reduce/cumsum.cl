#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/reduce/sums.clh"

#if defined(ZG_I32) || defined(ZG_I64)
#define stored(sum) ((real)(sum))
#else
#define stored(sum) narrowed(sum_result(sum, 1.0f))
#endif

/// One work-item for each row and chunk of it (get_group_id(1)); neighbouring work-items have
/// neighbouring rows. Without y it writes the chunk's sum to `parts`; else it begins with the sum
/// there.
element_kernel void sum_chunks(__global const real* x, __global real* y, __global sum_state* parts,
                               long rows, long extent, long inner, long chunk, int reversed) {
  const long row = element_index();
  if (row >= rows) return;
  const long outer = quotient(row, inner);
  const long begin = outer * extent * inner + row - outer * inner;
  const long first = get_group_id(1) * chunk, last = min(first + chunk, extent);
  const long own = get_group_id(1) * rows + row;
  sum_state sum = sum_start;
  if (y && parts) sum = parts[own];
  for (long i = first; i < last; ++i) {
    const long at = begin + (reversed ? extent - 1 - i : i) * inner;
    sum = sum_join(sum, sum_of(x[at]));
    if (y) y[at] = stored(sum);
  }
  if (!y) parts[own] = sum;
}

/// Replaces the sum of each chunk by that of all chunks before it, one work-item for each row.
element_kernel void sum_before(__global sum_state* parts, long rows, long chunks) {
  const long row = element_index();
  if (row >= rows) return;
  sum_state before = sum_start;
  for (long at = row; at < rows * chunks; at += rows) {
    const sum_state sum = sum_join(before, parts[at]);
    parts[at] = before;
    before = sum;
  }
}

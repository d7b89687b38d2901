#include "zerograd/kernels/hpu/philox.clh"
#include "zerograd/kernels/hpu/tile.clh"

/// A work-item computes four elements, with the four words of one Philox counter: element_index()
/// is the counter's first word. A group with index `row` on the grid's second axis handles sample
/// first_sample + row.
element_kernel void dropout(__global const real* x, __global const real* residual, __global real* y,
                            long elements, ulong seed, uint first_sample, uint step, uint site,
                            uint threshold, float scale) {
  const long counter = element_index(), first = counter * 4;
  if (first >= elements) return;
  const uint row = get_group_id(1);
  uint4 words = 0;
  if (threshold > 0) words = philox((uint4)((uint)counter, first_sample + row, step, site), seed);
  const long begin = row * elements + first;
  const long end = begin + min(4L, elements - first);
  for (long i = begin; i < end; ++i, words = words.s1230) {
    const float value = kept(words.s0, threshold) ? widened(x[i]) * scale : 0.0f;
    y[i] = narrowed(residual ? value + widened(residual[i]) : value);
  }
}

#include "zerograd/kernels/hpu/philox.clh"
#include "zerograd/kernels/hpu/tile.clh"

/// A work-item computes a span, with the eight words of two Philox counters, whose first words are
/// an even number and the next one. A group with index `row` on the grid's second axis handles
/// sample first_sample + row.
element_kernel void dropout(__global const real* x, __global const real* residual, __global real* y,
                            long elements, ulong seed, uint first_sample, uint step, uint site,
                            uint threshold, float scale) {
  take_span(elements);
  const uint row = get_group_id(1);
  const long at = row * elements + begin;
  uint8 words = 0;
  if (threshold > 0) {
    const uint4 counter = (uint4)((uint)(begin / 4), first_sample + row, step, site);
    words.lo = philox(counter, seed);
    words.hi = philox(counter + (uint4)(1, 0, 0, 0), seed);
  }
  const real8 xs = load_span(x + at, count);
  real8 others = 0, ys;
  if (residual) others = load_span(residual + at, count);
  for_span(e) {
    const float value = kept(words[e], threshold) ? widened(xs[e]) * scale : 0.0f;
    ys[e] = narrowed(residual ? value + widened(others[e]) : value);
  }
  store_span(y + at, ys, count);
}

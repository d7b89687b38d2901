#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

/// A work-item a result: along the axis of `extent` elements, `inner` apart. NaN counts as largest.
element_kernel void argmax(__global const real* x, __global long* y, long results, long extent,
                           long inner) {
  const long r = element_index();
  if (r >= results) return;
  const long before = quotient(r, inner);
  __global const real* const from = x + before * extent * inner + r - before * inner;
  float best = widened(from[0]);
  long place = 0;
  for (long i = 1; i < extent && !isnan(best); ++i) {
    const float value = widened(from[i * inner]);
    if (value <= best) continue;  // greater, or NaN
    best = value;
    place = i;
  }
  y[r] = place;
}

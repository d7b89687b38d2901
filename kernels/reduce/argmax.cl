#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

/// One work-item for each result, over `extent` elements that are `inner` apart. The first of equal
/// elements counts; NaN is larger than every number.
element_kernel void argmax(__global const real* x, __global long* y, long results, long extent,
                           long inner) {
  const long r = element_index();
  if (r >= results) return;
  const long outer = quotient(r, inner);
  __global const real* const from = x + outer * extent * inner + r - outer * inner;
  float best = widened(from[0]);
  long index_of_best = 0;
  for (long i = 1; i < extent && !isnan(best); ++i) {
    const float value = widened(from[i * inner]);
    if (value <= best) continue;  // greater, or NaN
    best = value;
    index_of_best = i;
  }
  y[r] = index_of_best;
}

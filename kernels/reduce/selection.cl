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

/// Whether `a` is larger than `b` (smaller, if not `largest`), NaN being larger than every number.
bool precedes(float a, float b, int largest) {
  const float high = largest ? a : b, low = largest ? b : a;
  return high > low || (isnan(high) && !isnan(low));
}

/// One work-item for each row of `extent` elements that are `inner` apart. Each pass finds the next
/// element in the order.
element_kernel void top_k(__global const real* x, __global long* y, long rows, long extent,
                          long count, long inner, int largest) {
  const long row = element_index();
  if (row >= rows) return;
  const long outer = quotient(row, inner), offset = row - outer * inner;
  __global const real* const from = x + outer * extent * inner + offset;
  __global long* const to = y + outer * count * inner + offset;
  float last = 0.0f;
  long place_of_last = -1;
  for (long k = 0; k < count; ++k) {
    float best = 0.0f;
    long place = -1;
    for (long i = 0; i < extent; ++i) {
      const float value = widened(from[i * inner]);
      const bool follows = k == 0 || precedes(last, value, largest) ||
                           (i > place_of_last && !precedes(value, last, largest));
      if (!follows || (place >= 0 && !precedes(value, best, largest))) continue;
      best = value;
      place = i;
    }
    to[k * inner] = place;
    last = best;
    place_of_last = place;
  }
}

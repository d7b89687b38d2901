#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

/// The row (column) of x for place u of row (column) i of y; -1: none. The axis of a window is its
/// size, stride, padding before the first element, and dilation.
static inline long source(long4 axis, int transposed, long i, long u, long extent) {
  long at = i * axis.s1 + u * axis.s3 - axis.s2;
  if (transposed) {
    const long sum = i + axis.s2 - u * axis.s3;
    at = sum < 0 ? -1 : quotient(sum, axis.s1);
    if (at * axis.s1 != sum) at = -1;
  }
  return at < extent ? at : -1;
}

/// One work-item for each of the n elements of y, which sums its places in rising order. For the
/// largest element they fall, so that the first of equal ones is the last to replace another.
/// `planes` has the fields of Planes, `window` the axes of rows and columns.
element_kernel void window_reduce(__global const real* x, __global const real* weight,
                                  __global const real* bias, __global real* y,
                                  __global int* places, long n, long8 planes, long8 window,
                                  int transposed, int largest, float divisor) {
  const long index = element_index();
  if (index >= n) return;
  const long channels = planes.s0, x_rows = planes.s1, x_columns = planes.s2, y_rows = planes.s3,
             y_columns = planes.s4;
  const long row = quotient(index, y_columns), j = index - row * y_columns;
  const long plane = quotient(row, y_rows), i = row - plane * y_rows;
  const long sample = quotient(plane, channels), channel = plane - sample * channels;
  const long offset = sample * planes.s5 + channel * planes.s6;
  if (weight) weight += channel * window.s0 * window.s4;
  float sum = largest ? -INFINITY : bias ? widened(bias[channel]) : 0.0f;
  long found = 0;
  for (long p = 0; p < window.s0; ++p) {
    const long u = largest ? window.s0 - 1 - p : p;
    const long from = source(window.lo, transposed, i, u, x_rows);
    if (from < 0) continue;
    for (long q = 0; q < window.s4; ++q) {
      const long v = largest ? window.s4 - 1 - q : q;
      const long at = source(window.hi, transposed, j, v, x_columns);
      if (at < 0) continue;
      const long place = u * window.s4 + v;
      const long element = offset + place * planes.s7 + from * x_columns + at;
      if (transposed && places && places[element] != place) continue;
      const float value = widened(x[element]);
      if (!largest) {
        sum += weight ? widened(weight[place]) * value : value;
      } else if (value >= sum || value != value) {
        sum = value;
        found = place;
      }
    }
  }
  y[index] = narrowed(sum / divisor);
  if (largest) places[index] = (int)found;
}

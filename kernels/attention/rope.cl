#include "zerograd/kernels/hpu/tile.clh"

/// Turns the first `rotated` elements of each head of D elements; a work-item takes one pair
/// (i, i + rotated / 2), or two of the elements that stay. `sign` is the sine's: -1 in backward.
element_kernel void rope(__global const real* x, __global real* y, __global const float* table,
                         __global const int* positions, long items, long T, long rows,
                         long first_position, long heads, long D, long rotated, float sign,
                         fault_parameters) {
  const long item = element_index();
  if (item >= items) return;
  const long pairs = rotated / 2, per_head = pairs + (D - rotated + 1) / 2;
  const long head = item / per_head, i = item % per_head, token = head / heads;
  x += head * D;
  y += head * D;
  if (i >= pairs) {
    const long d = rotated + 2 * (i - pairs);
    y[d] = x[d];
    if (d + 1 < D) y[d + 1] = x[d + 1];
    return;
  }
  long position = positions ? (long)positions[token] : first_position + token % T;
  if (position < 0 || position >= rows) {
    report(fault_arguments, token, position, rows);
    position = 0;
  }
  __global const float* row = table + position * rotated;
  const float cosine = row[i], sine = row[pairs + i] * sign;
  const float first = widened(x[i]), second = widened(x[pairs + i]);
  y[i] = narrowed(first * cosine - second * sine);
  y[pairs + i] = narrowed(second * cosine + first * sine);
}

#include "zerograd/kernels/hpu/philox.clh"
#include "zerograd/kernels/hpu/tile.clh"

/// Index in the whole sample of element e of a slice, as DropoutSlice::at().
static inline long whole_index(long e, long first, long row, long whole_row) {
  return first + (e < row ? e : e / row * whole_row + e % row);
}

/// A work-item computes a span. If `aligned`, its four first elements and its four last ones have a
/// Philox counter each. A group with index `sample` on the grid's second axis handles
/// sample first_sample + sample.
element_kernel void dropout(__global const real* x, __global const real* residual, __global real* y,
                            long elements, long first, long row, long whole_row, int aligned,
                            ulong seed, uint first_sample, uint step, uint site, uint threshold,
                            float scale) {
  take_span(elements);
  const uint sample = get_group_id(1);
  const long at = sample * elements + begin;
  uint8 words = 0;
  if (threshold > 0) {
    uint4 counter = (uint4)(0, first_sample + sample, step, site);
    if (aligned) {
      counter.s0 = (uint)(whole_index(begin, first, row, whole_row) / 4);
      words.lo = philox(counter, seed);
      counter.s0 = (uint)(whole_index(begin + 4, first, row, whole_row) / 4);
      words.hi = philox(counter, seed);
    } else {
      // Not unrolled: Philox would be 8 times as much code. SPIR-V does not keep "unroll 1".
      for (int m = 0; m < max(SPAN, (int)-row); ++m) {
        const long index = whole_index(begin + m, first, row, whole_row);
        counter.s0 = (uint)(index / 4);
        const uint word = word_of(philox(counter, seed), index);
        words = (int8)(0, 1, 2, 3, 4, 5, 6, 7) == m ? (uint8)(word) : words;
      }
    }
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

#pragma once

#include <algorithm>
#include <cstdint>

#include "zerograd/autograd/parameter.h"

// The elements that two slices of one parameter share. Pure arithmetic.
namespace zg::zero {

inline Slice whole_slice(int64_t numel) { return {.extent = numel, .rows = numel}; }

/// Calls f(i, j, count) for each contiguous run of elements that elements [first, last) of slice
/// `a` share with slice `b`. The run starts at element i of `a` and element j of `b`. In rising i.
template <class F>
void for_each_common(const Slice& a, int64_t first, int64_t last, const Slice& b, const F& f) {
  const int64_t block = b.extent * b.inner, low = b.begin * b.inner, high = low + b.rows * b.inner;
  for (int64_t i = first; i < last;) {
    const int64_t run = std::min(a.run_left(i), last - i), begin = a.whole_index(i);
    for (int64_t x = begin; x < begin + run;) {
      const int64_t place = x % block;
      if (place < low) {
        x += low - place;
      } else if (place >= high) {
        x += block - place + low;
      } else {
        const int64_t count = std::min(high - place, begin + run - x);
        f(i + x - begin, x / block * (high - low) + place - low, count);
        x += count;
      }
    }
    i += run;
  }
}

}  // namespace zg::zero

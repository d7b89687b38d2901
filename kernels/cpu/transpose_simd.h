#pragma once

#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu {
namespace {

/// Transposes a square of 32-bit words in place: lane i of row j and lane j of row i are exchanged.
/// First its quarters change places, then those of each quarter, down to single words.
template <int distance = part_lanes / 2>
inline void transpose(Part (&rows)[part_lanes]) {
  constexpr auto indices = std::make_index_sequence<part_lanes>();
#pragma GCC unroll 16
  for (int i = 0; i < part_lanes; ++i) {
    if (i & distance) continue;
    const Part a = rows[i], b = rows[i + distance];
    rows[i] = even_blocks<distance>(a, b, indices);
    rows[i + distance] = odd_blocks<distance>(a, b, indices);
  }
  if constexpr (distance > 1) transpose<distance / 2>(rows);
}

/// The same of a square of vectors: the squares of registers, and their places.
inline void transpose(Vec (&rows)[Vec::lanes]) {
  for (int i = 0; i < parts; ++i)
    for (int j = 0; j <= i; ++j) {
      Part upper[part_lanes], lower[part_lanes];
      for (int k = 0; k < part_lanes; ++k) {
        upper[k] = rows[j * part_lanes + k].part[i];
        lower[k] = rows[i * part_lanes + k].part[j];
      }
      transpose(upper);
      transpose(lower);
      for (int k = 0; k < part_lanes; ++k) {
        rows[i * part_lanes + k].part[j] = upper[k];
        rows[j * part_lanes + k].part[i] = lower[k];
      }
    }
}

}  // namespace
}  // namespace zg::cpu

#pragma once

#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu {
namespace {

/// Transposes a square of 32-bit words in place: lane i of row j and lane j of row i are exchanged.
#if defined(__AVX512F__)
inline void transpose(Part (&rows)[16]) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_castps_si512(rows[i]);
  for (int i = 0; i < 16; i += 2) {  // 1 x 1 words
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // 2 x 2
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // 4 x 4, lanes of 128 bits
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {  // 8 x 8
    rows[i] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
    rows[i + 8] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
  }
}
#elif defined(__AVX2__)
inline void transpose(Part (&rows)[8]) {
  Part r[8], t[8];
  for (int i = 0; i < 8; i += 2) {  // 1 x 1 words
    t[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {  // 2 x 2
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {  // 4 x 4, lanes of 128 bits
    rows[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
}
#else
inline void transpose(Part (&rows)[4]) {
  const Part low = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Part high = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Part next_low = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Part next_high = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(low, next_low, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(low, next_low, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(high, next_high, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(high, next_high, 2, 3, 6, 7);
}
#endif

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

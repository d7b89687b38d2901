#pragma once

#include "zerograd/kernels/cpu/transpose_simd.h"
#include "zerograd/kernels/matmul/matmul_table.h"
#include "zerograd/kernels/matmul/pairs_simd.h"

// Packs blocks of operands into panels of 32-bit words; see kernels/matmul/matmul_table.h. A Source
// (Single, Pair) defines a word: how many elements it holds, how to load words that are neighbours
// along K (along_k), and how to load one step of K for neighbouring rows or columns (across).
namespace zg::cpu {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>  // f32, and f16 widened to it
struct Single {
  using Element = T;
  static constexpr int64_t per_word = 1;
  static constexpr bool swaps = false;  ///< the two steps of a pair along K change places
  static Part along_k(const T* p, int64_t elements) {
    return elements >= part_lanes ? load_part(p) : load_part(p, elements);
  }
  static Part across(const T* p, int64_t, int64_t, int64_t width) { return along_k(p, width); }
};

#if defined(__AVX512BF16__)
struct Pair {
  using Element = bf16;
  static constexpr int64_t per_word = 2;
  static constexpr bool swaps = false;
  static __mmask32 first_halves(int64_t n) {
    return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1u;
  }
  static Part along_k(const bf16* p, int64_t elements) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first_halves(elements), p));
  }
  /// Word i is a pair: element i of the stored row at p and, if depth > 1, element i of the next
  /// row.
  static Part across(const bf16* p, int64_t row_stride, int64_t depth, int64_t width) {
    const Lanes valid = first_lanes(width);
    __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, p));
    if (depth > 1) {
      const __m256i upper = _mm256_maskz_loadu_epi16(valid, p + row_stride);
      words = _mm512_or_si512(words, _mm512_slli_epi32(_mm512_cvtepu16_epi32(upper), 16));
    }
    return _mm512_castsi512_ps(words);
  }
};
#else
struct Pair : Single<bf16> {
  static constexpr bool swaps = true;
  static Part along_k(const bf16* p, int64_t elements) {
    return without_subnormals(Single::along_k(p, elements));
  }
  static Part across(const bf16* p, int64_t, int64_t, int64_t width) { return along_k(p, width); }
};
#endif

/// Steps of `depth` elements: of whole pairs, if those are swapped.
template <class Source>
int64_t steps_of(int64_t depth) {
  constexpr int64_t unit = Source::swaps ? 2 : Source::per_word;
  return (depth + unit - 1) / unit * unit / Source::per_word;
}

/// Packs up to part_lanes columns of a panel from an operand that stores them as rows along K.
template <class Source>
void pack_transposed(const typename Source::Element* source, int64_t row_stride, int64_t columns,
                     int64_t width, int64_t depth, int64_t panel, float* out) {
  constexpr int64_t elements = part_lanes * Source::per_word;
  for (int64_t k = 0; k < depth; k += elements) {
    Part block[part_lanes];
    for (int i = 0; i < part_lanes; ++i)
      block[i] = i < columns ? Source::along_k(source + i * row_stride + k, depth - k) : Part{};
    transpose(block);
    const int64_t steps = steps_of<Source>(smaller(elements, depth - k));
    for (int64_t s = 0; s < steps; ++s, out += panel) {
      const Part words = block[Source::swaps ? s ^ 1 : s];
      width >= part_lanes ? store_part(out, words) : store_part(out, words, width);
    }
  }
}

/// Packs all panels from an operand that stores each step of K as a row.
template <class Source>
void pack_across(const typename Source::Element* source, const PackBlock& block, int64_t steps) {
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t k = (Source::swaps ? s ^ 1 : s) * Source::per_word;
    const auto* row = source + k * block.row_stride;
    float* out = block.panels + s * block.panel;
    for (int64_t first = 0; first < block.width; first += block.panel, out += steps * block.panel)
      for (int64_t j = 0; j < block.panel; j += part_lanes) {
        const int64_t valid = block.width - first - j, width = block.panel - j;
        const Part words = valid <= 0 || k >= block.depth
                               ? Part{}
                               : Source::across(row + first + j, block.row_stride, block.depth - k,
                                                smaller(valid, width));
        width >= part_lanes ? store_part(out + j, words) : store_part(out + j, words, width);
      }
  }
}

template <class Source>
void pack_block(const PackBlock& block) {
  const auto* source = reinterpret_cast<const typename Source::Element*>(block.source);
  const int64_t steps = steps_of<Source>(block.depth);
  if (!block.along_k) return pack_across<Source>(source, block, steps);
  for (int64_t first = 0; first < block.width; first += block.panel)
    for (int64_t j = 0; j < block.panel; j += part_lanes)
      pack_transposed<Source>(source + (first + j) * block.row_stride, block.row_stride,
                              smaller(block.panel, block.width - first) - j, block.panel - j,
                              block.depth, block.panel, block.panels + first * steps + j);
}

}  // namespace
}  // namespace zg::cpu

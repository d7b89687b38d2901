#pragma once

#include "zerograd/kernels/cpu/transpose_simd.h"
#include "zerograd/kernels/matmul/matmul_table.h"

// Packs blocks of operands into panels of 32-bit words; see kernels/matmul/matmul_table.h. A Source
// (Single, Pair) defines a word: how many elements it holds, how to load words that are neighbours
// along K (along_k), and how to load one step of K for neighbouring rows or columns (across).
namespace zg::cpu {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>  // f32, and bf16 or f16 widened to it
struct Single {
  using Element = T;
  static constexpr int64_t per_word = 1;
  static Vec along_k(const T* p, int64_t elements) {
    return elements >= Vec::lanes ? load(p) : load(p, elements);
  }
  static Vec across(const T* p, int64_t, int64_t, int64_t width) { return along_k(p, width); }
};

#if defined(__AVX512BF16__)
struct Pair {
  using Element = bf16;
  static constexpr int64_t per_word = 2;
  static __mmask32 first_halves(int64_t n) {
    return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1u;
  }
  static Vec along_k(const bf16* p, int64_t elements) {
    return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first_halves(elements), p))};
  }
  /// Word i is a pair: element i of the stored row at p and, if depth > 1, element i of the next
  /// row.
  static Vec across(const bf16* p, int64_t row_stride, int64_t depth, int64_t width) {
    const Mask valid = first(width);
    __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, p));
    if (depth > 1) {
      const __m256i upper = _mm256_maskz_loadu_epi16(valid, p + row_stride);
      words = _mm512_or_si512(words, _mm512_slli_epi32(_mm512_cvtepu16_epi32(upper), 16));
    }
    return {_mm512_castsi512_ps(words)};
  }
};
#endif

/// Packs up to Vec::lanes columns of a panel from an operand that stores them as rows along K.
template <class Source>
void pack_transposed(const typename Source::Element* source, int64_t row_stride, int64_t columns,
                     int64_t width, int64_t depth, int64_t panel, float* out) {
  constexpr int64_t elements = Vec::lanes * Source::per_word;
  for (int64_t k = 0; k < depth; k += elements) {
    Vec block[Vec::lanes];
    for (int i = 0; i < Vec::lanes; ++i)
      block[i] = i < columns ? Source::along_k(source + i * row_stride + k, depth - k) : set1(0.0f);
    transpose(block);
    const int64_t steps = (smaller(elements, depth - k) + Source::per_word - 1) / Source::per_word;
    for (int64_t s = 0; s < steps; ++s, out += panel)
      width >= Vec::lanes ? store(out, block[s]) : store(out, block[s], width);
  }
}

/// Packs all panels from an operand that stores each step of K as a row.
template <class Source>
void pack_across(const typename Source::Element* source, const PackBlock& block, int64_t steps) {
  for (int64_t s = 0, k = 0; s < steps; ++s, k += Source::per_word) {
    const auto* row = source + k * block.row_stride;
    float* out = block.panels + s * block.panel;
    for (int64_t first = 0; first < block.width; first += block.panel, out += steps * block.panel)
      for (int64_t j = 0; j < block.panel; j += Vec::lanes) {
        const int64_t valid = block.width - first - j, width = block.panel - j;
        const Vec words = valid <= 0 ? set1(0.0f)
                                     : Source::across(row + first + j, block.row_stride,
                                                      block.depth - k, smaller(valid, width));
        width >= Vec::lanes ? store(out + j, words) : store(out + j, words, width);
      }
  }
}

template <class Source>
void pack_block(const PackBlock& block) {
  const auto* source = reinterpret_cast<const typename Source::Element*>(block.source);
  const int64_t steps = (block.depth + Source::per_word - 1) / Source::per_word;
  if (!block.along_k) return pack_across<Source>(source, block, steps);
  for (int64_t first = 0; first < block.width; first += block.panel)
    for (int64_t j = 0; j < block.panel; j += Vec::lanes)
      pack_transposed<Source>(source + (first + j) * block.row_stride, block.row_stride,
                              smaller(block.panel, block.width - first) - j, block.panel - j,
                              block.depth, block.panel, block.panels + first * steps + j);
}

}  // namespace
}  // namespace zg::cpu

#pragma once

#include "zerograd/kernels/cpu/transpose_simd.h"
#include "zerograd/kernels/matmul/matmul_table.h"
#include "zerograd/kernels/matmul/pairs_simd.h"

// Packs blocks of operands into panels of 32-bit words; see kernels/matmul/matmul_table.h. Word<T>
// says how many elements of type T a word holds, how to load words that are neighbours along K
// (along_k), and how to load one step of K for neighbouring rows or columns (across).
namespace zg::cpu {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// Prefetches a piece of a stored row that is packed later into the L2 cache. Where rows are far
/// apart and short pieces are read, processors do not prefetch the next ones themselves.
inline void prefetch_row(const void* p, int64_t bytes) {
  constexpr int64_t line = 64;
  for (int64_t i = 0; i < bytes; i += line)
    __builtin_prefetch(static_cast<const char*>(p) + i, 0, 2);
}

template <class T>  // f32, and what is widened to it
struct Word {
  static constexpr int64_t elements = 1;
  /// The two steps of a pair of bf16 along K change places.
  static constexpr bool swaps = std::is_same_v<T, bf16>;
  static Part along_k(const T* p, int64_t n) {
    const Part words = n >= part_lanes ? load_part(p) : load_part(p, n);
    return swaps ? without_subnormals(words) : words;
  }
  static Part across(const T* p, int64_t, int64_t, int64_t width) { return along_k(p, width); }
};

#if defined(__AVX512BF16__)
template <>
struct Word<bf16> {
  static constexpr int64_t elements = 2;
  static constexpr bool swaps = false;
  static __mmask32 first_halves(int64_t n) {
    return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1u;
  }
  static Part along_k(const bf16* p, int64_t n) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first_halves(n), p));
  }
  /// Word i is a pair: element i of the stored row at p and, if depth > 1, element i of the next
  /// row.
  static Part across(const bf16* p, int64_t row_stride, int64_t depth, int64_t width) {
    const Words lower = widen(load_some(&p->bits, width));
    if (depth <= 1) return part_of(lower);
    return part_of(lower | widen(load_some(&p[row_stride].bits, width)) << 16);
  }
};
#endif

/// Steps of `depth` elements: of whole pairs, if those are swapped.
template <class T>
int64_t steps_of(int64_t depth) {
  constexpr int64_t unit = Word<T>::swaps ? 2 : Word<T>::elements;
  return (depth + unit - 1) / unit * unit / Word<T>::elements;
}

/// Stores a register's first words, `width` of them, at one step of a panel. What a whole register
/// writes beyond a panel that is narrower belongs to the next step, which is stored later.
inline void store_step(float* out, Part words, int64_t width, int64_t panel, bool last) {
  width >= part_lanes || (panel < part_lanes && !last) ? store_part(out, words)
                                                       : store_part(out, words, width);
}

/// Packs up to part_lanes columns of a panel from an operand that stores them as rows along K.
template <class T>
void pack_transposed(const T* source, int64_t row_stride, int64_t columns, int64_t width,
                     int64_t depth, int64_t panel, float* out) {
  constexpr int64_t elements = part_lanes * Word<T>::elements;
  for (int64_t k = 0; k < depth; k += elements) {
    Part block[part_lanes];
    for (int i = 0; i < part_lanes; ++i)
      prefetch_row(source + (i + part_lanes) * row_stride + k, sizeof(Part));
    for (int i = 0; i < part_lanes; ++i)
      block[i] = i < columns ? Word<T>::along_k(source + i * row_stride + k, depth - k) : Part{};
    transpose(block);
    const int64_t steps = steps_of<T>(smaller(elements, depth - k));
    for (int64_t s = 0; s < steps; ++s, out += panel) {
      const bool last = k + elements >= depth && s + 1 == steps;
      store_step(out, block[Word<T>::swaps ? s ^ 1 : s], width, panel, last);
    }
  }
}

/// Packs all panels from an operand that stores each step of K as a row.
template <class T>
void pack_across(const T* source, const PackBlock& block, int64_t steps) {
  constexpr int64_t ahead = 32 * Word<T>::elements;      // measured
  const int64_t panel = block.panel, end = block.width;  // not read again after stores
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t k = (Word<T>::swaps ? s ^ 1 : s) * Word<T>::elements;
    const T* row = source + k * block.row_stride;
    for (int64_t i = 0; i < Word<T>::elements; ++i)
      prefetch_row(row + (ahead + i) * block.row_stride, block.width * int64_t{sizeof(T)});
    float* out = block.panels + s * panel;
    int64_t first = 0;
    // Whole registers of panels narrower than one.
    if (panel < part_lanes && k + Word<T>::elements <= block.depth && s + 1 < steps)
      for (; first + part_lanes <= end; first += panel, out += steps * panel)
        store_part(out,
                   Word<T>::across(row + first, block.row_stride, Word<T>::elements, part_lanes));
    for (; first < block.width; first += block.panel, out += steps * block.panel)
      for (int64_t j = 0; j < block.panel; j += part_lanes) {
        const int64_t valid = block.width - first - j, width = block.panel - j;
        const Part words = valid <= 0 || k >= block.depth
                               ? Part{}
                               : Word<T>::across(row + first + j, block.row_stride, block.depth - k,
                                                 smaller(valid, part_lanes));
        store_step(out + j, words, width, block.panel, s + 1 == steps);
      }
  }
}

template <class T>
void pack_block(const PackBlock& block) {
  const auto* source = reinterpret_cast<const T*>(block.source);
  const int64_t steps = steps_of<T>(block.depth);
  if (!block.along_k) return pack_across<T>(source, block, steps);
  for (int64_t first = 0; first < block.width; first += block.panel)
    for (int64_t j = 0; j < block.panel; j += part_lanes)
      pack_transposed<T>(source + (first + j) * block.row_stride, block.row_stride,
                         smaller(block.panel, block.width - first) - j, block.panel - j,
                         block.depth, block.panel, block.panels + first * steps + j);
}

}  // namespace
}  // namespace zg::cpu

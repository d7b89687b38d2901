#pragma once

#include "zerograd/kernels/matmul/matmul_pack_simd.h"
#include "zerograd/kernels/matmul/pairs_simd.h"

// Few rows of a against b stored [N, K], as when one token is generated: packing b would cost more
// than using it, so both are read along K, once, from where they are. Bound by the memory that
// holds b.
namespace zg::cpu {
namespace {

/// `rows` rows of a against enough rows of b that their dot products fill one vector; those beyond
/// the edge repeat the last one and are dropped.
template <class Source, int rows>
void dot_products(const MultiplyBlock& block, int64_t row, int64_t column) {
  using T = typename Source::Element;
  constexpr int columns = Vec::lanes / rows;
  constexpr int64_t elements = Vec::lanes * Source::per_word;
  const T *a[rows], *b[columns];
  for (int i = 0; i < rows; ++i)
    a[i] = reinterpret_cast<const T*>(block.a.data +
                                      smaller(row + i, block.rows - 1) * block.a.row_bytes);
  for (int j = 0; j < columns; ++j)
    b[j] = reinterpret_cast<const T*>(block.b.data +
                                      smaller(column + j, block.columns - 1) * block.b.row_bytes);
  // The rows that come next: at their beginnings no hardware would know yet what is read.
  const int64_t ahead = columns * block.b.row_bytes;
  Vec sum[Vec::lanes];
  for (int s = 0; s < Vec::lanes; ++s) sum[s] = set1(0.0f);
  const auto accumulate = [&](int64_t k, int64_t n) __attribute__((always_inline)) {
    Vec left[rows];
    for (int i = 0; i < rows; ++i) left[i] = Source::along_k(a[i] + k, n);
#pragma GCC unroll 16
    for (int j = 0; j < columns; ++j) {
      const Vec right = Source::along_k(b[j] + k, n);
      _mm_prefetch(reinterpret_cast<const char*>(b[j] + k) + ahead, _MM_HINT_T1);
      for (int i = 0; i < rows; ++i) {
        Vec& s = sum[i * columns + j];
        s = multiply_add<Source::per_word == 2>(left[i], right, s);
      }
    }
  };
  int64_t k = 0;
  for (; k + elements <= block.steps; k += elements) accumulate(k, elements);
  if (k < block.steps) accumulate(k, block.steps - k);
  transpose(sum);
  for (int width = Vec::lanes / 2; width > 0; width /= 2)
    for (int s = 0; s < width; ++s) sum[s] = sum[s] + sum[s + width];
  float products[Vec::lanes];
  store(products, sum[0]);
  for (int64_t i = 0; i < smaller(rows, block.rows - row); ++i)
    for (int64_t j = 0; j < smaller(columns, block.columns - column); ++j) {
      float& out = block.sums[(row + i) * block.sums_distance + column + j];
      out = products[i * columns + j] + (block.add ? out : 0.0f);
    }
}

template <class Source, int rows>
void dot_rows(const MultiplyBlock& block, int64_t row) {
  for (int64_t column = 0; column < block.columns; column += Vec::lanes / rows)
    dot_products<Source, rows>(block, row, column);
}

template <class Source>
void dot_block(const MultiplyBlock& block) {
  for (int64_t row = 0; row < block.rows; row += 4) {
    const int64_t rows = block.rows - row;
    rows == 1   ? dot_rows<Source, 1>(block, row)
    : rows == 2 ? dot_rows<Source, 2>(block, row)
                : dot_rows<Source, 4>(block, row);
  }
}

}  // namespace
}  // namespace zg::cpu

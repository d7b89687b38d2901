#pragma once

#include "zerograd/kernels/attention/attention_cpu.h"
#include "zerograd/kernels/cpu/philox_simd.h"
#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/cpu/transpose_simd.h"

// Shared by forward and backward attention: products of small matrices in f32 scratch.
//
// A left factor (queries, weights) is a block of rows that are row_stride apart. row_stride is one
// constant, so the addresses of a tile's rows are constants too. It is not a multiple of 4096
// bytes, so the rows do not map to one set of the cache. A right factor (keys, values) is packed
// into panels of panel_columns columns. All extents are padded to whole tiles, so the inner loop
// needs no edge cases; padding is multiplied by weights of 0 or only contributes to padding.
namespace zg::cpu {
namespace {

// The largest tile whose sums fit the registers, beside the vectors of the right factor. Other
// sizes give the same bits: each sum runs along all of its products in order.
constexpr int64_t tile_rows = part_lanes == 16 ? 12 : 6;
constexpr int64_t tile_vectors = part_lanes == 16 ? 2 : 1;
constexpr int64_t panel_columns = tile_vectors * Vec::lanes;
constexpr int64_t row_stride = largest_tiled_head + 16;

inline int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/// Divides one worker's scratch into arrays that are aligned to 64 bytes. If `data` is null, it
/// only counts the bytes.
struct ScratchAllocator {
  std::byte* data;
  int64_t used = 0;

  inline float* take(int64_t elements) {
    float* part = data ? reinterpret_cast<float*>(data + used) : nullptr;
    used += round_up(elements * static_cast<int64_t>(sizeof(float)), 64);
    return part;
  }
};

/// A right factor. Element (k, c) is element c % panel_columns of row k of panel c / panel_columns.
/// `panel` and `row` are the strides of panels and of their rows, in elements.
struct Panels {
  const float* data;
  int64_t panel, row;
};
/// Packed: one panel after the other.
inline Panels packed(const float* data, int64_t depth) {
  return {data, depth * panel_columns, panel_columns};
}
/// A right factor that is stored like a left factor.
inline Panels in_rows(const float* data) { return {data, panel_columns, row_stride}; }

enum class Left { rows, columns };
enum class Store { write, add };

/// c [tile_rows, vectors * lanes] = or += a b. a [tile_rows, depth] is stored by rows (Left::rows),
/// or its transpose is (Left::columns).
template <int vectors, Left left, Store mode>
[[gnu::noinline]] void tile(int64_t depth, const float* a, const float* b, int64_t b_row, float* c,
                            int64_t c_row) {
  Vec sum[tile_rows][vectors];
#pragma GCC unroll 12
  for (int i = 0; i < tile_rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v)
      sum[i][v] = mode == Store::add ? load(c + i * c_row + v * Vec::lanes) : 0.0;
  for (int64_t k = 0; k < depth; ++k) {
    Vec right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = load(b + v * Vec::lanes);
#pragma GCC unroll 12
    for (int i = 0; i < tile_rows; ++i) {
      const Vec factor = a[left == Left::rows ? i * row_stride : i];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sum[i][v] = fma(factor, right[v], sum[i][v]);
    }
    a += left == Left::rows ? 1 : row_stride;
    b += b_row;
  }
#pragma GCC unroll 12
  for (int i = 0; i < tile_rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) store(c + i * c_row + v * Vec::lanes, sum[i][v]);
}

/// c [tile_rows, columns] = or += a b, tile by tile; columns is a multiple of Vec::lanes.
template <Left left, Store mode>
inline void multiply(int64_t depth, int64_t columns, const float* a, const Panels& b, float* c,
                     int64_t c_row) {
  const float* panel = b.data;
  int64_t j = 0;
  for (; j + panel_columns <= columns; j += panel_columns, panel += b.panel)
    tile<tile_vectors, left, mode>(depth, a, panel, b.row, c + j, c_row);
  if (j < columns) tile<1, left, mode>(depth, a, panel, b.row, c + j, c_row);
}

/// row = source * scale for D elements, then zeros to the end of the last vector.
template <class T>
inline void load_row(float* row, const T* source, int64_t D, float scale) {
  for_vectors(D, [&](int64_t d, auto count) { store(row + d, load(source + d, count) * scale); });
}

template <class T>
inline void store_row(T* target, const float* row, int64_t D, float scale) {
  for_vectors(D, [&](int64_t d, auto count) { store(target + d, load(row + d) * scale, count); });
}

inline void zero_row(float* row, int64_t n) {
  for (int64_t i = 0; i < n; i += Vec::lanes) store(row + i, Vec(0.0));
}

/// Packs n rows of D elements, `token` elements apart, as a right factor [n, D].
template <class T>
inline void pack_rows(float* panels, const T* rows, int64_t token, int64_t n, int64_t D) {
  for (int64_t j = 0; j < n; ++j, rows += token, panels += panel_columns)
    for_vectors(D, [&](int64_t d, auto count) {
      store(panels + d / panel_columns * n * panel_columns + d % panel_columns,
            load(rows + d, count));
    });
}

/// Packs the transpose as a right factor [D, n], with zeros to the end of the last vector.
template <class T>
inline void pack_transposed(float* panels, const T* rows, int64_t token, int64_t n, int64_t D) {
  for (int64_t j = 0; j < n; j += Vec::lanes) {
    float* panel = panels + j / panel_columns * D * panel_columns + j % panel_columns;
    const int64_t valid = smaller(Vec::lanes, n - j);
    for_vectors(D, [&](int64_t d, auto count) {
      Vec square[Vec::lanes];
      for (int i = 0; i < Vec::lanes; ++i)
        square[i] = i < valid ? load(rows + (j + i) * token + d, count) : 0.0;
      transpose(square);
      const int64_t depth = smaller(Vec::lanes, D - d);
      for (int i = 0; i < depth; ++i) store(panel + (d + i) * panel_columns, square[i]);
    });
  }
}

/// Dropout factors of a block of `rows` queries from t0 on. If there are few keys, the factors of
/// all rows are generated together: they are consecutive elements, and a single row would use only
/// a small part of a vector of random words.
struct BlockFactors {
  const AttentionCall& call;
  float* buffer;
  uint32_t sample;
  int64_t first;       ///< weight of query t0 and key 0
  const float* whole;  ///< factors of the whole block, if generated together; else null

  static constexpr int64_t few_keys = 64;
  static constexpr int64_t room(int64_t rows, int64_t key_block) {
    return rows * few_keys > key_block ? factor_room(rows * few_keys) : factor_room(key_block);
  }

  inline BlockFactors(const AttentionCall& of, float* room, int64_t b, int64_t h, int64_t t0,
                      int64_t rows)
      : call(of),
        buffer(room),
        sample(of.mask.sample + static_cast<uint32_t>(b)),
        first(first_weight(of, h, t0)),
        whole(nullptr) {
    if (call.mask.probability > 0.0f && call.all_keys <= few_keys)
      whole = fill_factors(buffer, call.mask, sample, first, rows * call.all_keys);
  }

  /// The dropout factors of the block's row r and n keys from j on, valid until the next call; null
  /// without dropout.
  inline const float* row(int64_t r, int64_t j, int64_t n) const {
    if (call.mask.probability == 0.0f) return nullptr;
    const int64_t element = r * call.all_keys + j;
    return whole ? whole + element : fill_factors(buffer, call.mask, sample, first + element, n);
  }
};

/// Adds ALiBi to the n scores of query t and the keys from j on. It is a separate pass, so that
/// calls without ALiBi need no time for it. It also changes the padding of the last vector.
/// Distances are integers, exact in f32.
inline void add_alibi(const AttentionCall& call, float* scores, int64_t h, int64_t t, int64_t j,
                      int64_t n) {
  if (!call.alibi_slopes) return;
  constexpr float steps[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Vec slope = static_cast<const float*>(call.alibi_slopes)[h];
  Vec distance = static_cast<float>(j - (t + call.shape.offset)) + load(steps);
  for (int64_t i = 0; i < n; i += Vec::lanes) {
    store(scores + i, fma(slope, distance, load(scores + i)));
    distance = distance + Vec::lanes;
  }
}

/// Query t sees keys [begin, end) of the n keys from j0 on; both count from j0.
struct Visible {
  int64_t begin, end;
  inline Visible(const AttentionShape& s, int64_t t, int64_t j0, int64_t n)
      : begin(larger(0, first_key(s, t) - j0)), end(smaller(n, visible_keys(s, t) - j0)) {
    if (end < begin) end = begin = 0;
  }
  inline int64_t count() const { return end - begin; }
};

/// Sets n scores of hidden keys to 0. Does not write beyond them, as zero_row() would.
inline void hide(float* scores, int64_t n) {
  for (int64_t i = 0; i < n; ++i) scores[i] = 0.0f;
}

/// Loads rows [t0, t0 + rows) of one head, times scale, as a left factor; the rest of the last tile
/// is 0.
template <class T>
inline void load_block(float* block, const void* data, const HeadLayout& layout, int64_t b,
                       int64_t h, int64_t t0, int64_t rows, int64_t D, float scale) {
  for (int64_t r = 0; r < rows; ++r)
    load_row(block + r * row_stride, at<const T>(data, layout, b, h, t0 + r), D, scale);
  for (int64_t r = rows; r % tile_rows != 0; ++r) zero_row(block + r * row_stride, D);
}

}  // namespace
}  // namespace zg::cpu

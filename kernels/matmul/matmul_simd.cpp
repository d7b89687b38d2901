#include "zerograd/kernels/matmul/matmul_finish_simd.h"
#include "zerograd/kernels/matmul/matmul_pack_simd.h"
#include "zerograd/kernels/matmul/matmul_table.h"
#include "zerograd/kernels/matmul/pairs_simd.h"

// The products of packed panels. Compute bound: a tile of tile_rows x tile_columns sums stays in
// registers over a block of K; per step it loads two registers of b and broadcasts tile_rows words
// of a, so with 32 (16) registers 24 (12) multiply-adds follow 14 (8) loads. Each sum runs along K
// in order, so the size of the tile does not change bits.
namespace zg::cpu {
namespace {

constexpr int tile_rows = part_lanes == 16 ? 12 : 6;
constexpr int tile_parts = 2;
constexpr int tile_columns = tile_parts * part_lanes;
constexpr int steps_ahead = 14;    // prefetch distance: 170 cycles, L2 and most of L3 latency
constexpr int steps_of_line = 16;  // steps along K in one cache line of a
constexpr int64_t line_bytes = 64;

/// The words of an operand, beginning at one row (column) and one step of K.
struct View {
  const std::byte* data;
  int64_t row_bytes, step_bytes;
};

/// A tile: some rows of a times a few vectors of columns of b, and the address of its sums.
struct Tile {
  View a, b;
  int64_t steps, columns;
  float* sums;
  int64_t row_stride;
  bool add;
  const FlushMode& mode;
  const float* folded;
  int64_t folds, fold_words, fold_row_stride;
  const float* bias;
};

/// Calls f(i, v) for each register of sums, v of row i. Unrolled, so that sums stay in registers.
template <int rows, int count, class F>
[[gnu::always_inline]] inline void each_sum(const F& f) {
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < count; ++v) f(i, v);
}

/// Writes `rows` rows of `count` registers of sums. A row's last register can be partly filled.
[[gnu::noinline]] void put_some(const Part* sum, int rows, int count, const Tile& tile) {
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < count; ++v) {
      const int64_t column = v * part_lanes, n = tile.columns - column;
      float* out = tile.sums + i * tile.row_stride + column;
      const float* folded = tile.folded + i * tile.fold_row_stride + column;
      Part total = *sum++;
      if (tile.add) total = load_part(out, n) + total;
      for (int64_t level = 0; level < tile.folds; ++level)
        total = total + load_part(folded + level * tile.fold_words);
      if (tile.bias) total = total + load_part(tile.bias + column, n);
      n >= part_lanes ? store_part(out, total) : store_part(out, total, n);
    }
}

template <int rows, int count>
inline void put(Part (&sum)[rows][count], const Tile& tile) {
  if (__builtin_expect(tile.folds > 0 || tile.columns < count * part_lanes, 0)) {
    Part copy[rows][count];
    each_sum<rows, count>([&](int i, int v) { copy[i][v] = sum[i][v]; });
    return put_some(copy[0], rows, count, tile);
  }
  float* const sums = tile.sums;
  const float* const bias = tile.bias;
  const int64_t row_stride = tile.row_stride;
  const auto at = [&](int i, int v) { return sums + i * row_stride + v * part_lanes; };
  if (tile.add)
    each_sum<rows, count>([&](int i, int v) { sum[i][v] = load_part(at(i, v)) + sum[i][v]; });
  if (bias)
    each_sum<rows, count>(
        [&](int i, int v) { sum[i][v] = sum[i][v] + load_part(bias + v * part_lanes); });
  each_sum<rows, count>([&](int i, int v) { store_part(at(i, v), sum[i][v]); });
}

/// Prefetches the lines of `bytes` bytes into the L1 cache. A prefetch beyond the end of the
/// operand has no effect.
template <int64_t bytes>
inline void prefetch(const void* p) {
#pragma GCC unroll 4
  for (int64_t line = 0; line < bytes; line += line_bytes)
    __builtin_prefetch(static_cast<const char*>(p) + line);
}

inline Part broadcast(const std::byte* word) {
  float value;
  __builtin_memcpy(&value, word, sizeof value);
  return splat(value);
}

/// Words of a are neighbours along M when `adjacent` (in panels, and in place if a is stored
/// transposed), else along K. Loops over sums are unrolled, so that sums are in registers
/// throughout.
template <bool pairs, bool adjacent, int rows, int count>
void multiply_tile(const Tile& tile) {
  constexpr int64_t word = sizeof(float), width = count * sizeof(Part);
  const int64_t row_bytes = adjacent ? word : tile.a.row_bytes;
  const int64_t a_step = adjacent ? tile.a.step_bytes : word, b_step = tile.b.step_bytes;
  Part sum[rows][count];
  each_sum<rows, count>([&](int i, int v) { sum[i][v] = Part{}; });
  for (int i = 0; i < rows; ++i) prefetch<width>(tile.sums + i * tile.row_stride);
  // Rows 0 to 2 are addressed as a + i * row_bytes; three more rows have a pointer of their own.
  const std::byte* a[(rows + 2) / 3];
  for (int i = 0; i < rows; i += 3) a[i / 3] = tile.a.data + i * row_bytes;
  const std::byte *b = tile.b.data, *b_ahead = b + steps_ahead * b_step;
  const std::byte* a_ahead = a[0] + steps_ahead * a_step;
  const auto add_step = [&](int64_t step) __attribute__((always_inline)) {
    Part right[count];
#pragma GCC unroll 2
    for (int v = 0; v < count; ++v)
      right[v] = load_part(reinterpret_cast<const float*>(b + step * b_step) + v * part_lanes);
    prefetch<width>(b_ahead + step * b_step);
    if (adjacent) prefetch<1>(a_ahead + step * a_step);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Part left = broadcast(a[i / 3] + i % 3 * row_bytes + step * a_step);
#pragma GCC unroll 2
      for (int v = 0; v < count; ++v) accumulate<pairs>(left, right[v], sum[i][v]);
    }
    __asm__ volatile("" : : : "memory");  // the next step's operands need these registers
  };
  const auto advance = [&](int64_t steps) __attribute__((always_inline)) {
    for (int i = 0; i < rows; i += 3) a[i / 3] += steps * a_step;
    b += steps * b_step;
    b_ahead += steps * b_step;
    a_ahead += steps * a_step;
  };
  tile.mode.begin();
  int64_t step = 0;
  for (; step + 4 <= tile.steps; step += 4) {
    if (!adjacent && step % steps_of_line == 0)
      for (int i = 0; i < rows; ++i)
        prefetch<1>(a[i / 3] + i % 3 * row_bytes + steps_of_line * a_step);
    add_step(0), add_step(1), add_step(2), add_step(3);
    advance(4);
  }
  for (; step < tile.steps; ++step) add_step(0), advance(1);
  tile.mode.end();
  put(sum, tile);
}

/// One function for each number of rows, so that a panel at the edge computes only the rows that it
/// has.
template <bool pairs, bool adjacent, int rows = tile_rows>
void multiply_rows(int64_t height, const Tile& tile) {
  if constexpr (rows > 1) {
    if (height < rows) return multiply_rows<pairs, adjacent, rows - 1>(height, tile);
  }
  tile.columns > part_lanes ? multiply_tile<pairs, adjacent, rows, tile_parts>(tile)
                            : multiply_tile<pairs, adjacent, rows, 1>(tile);
}

/// The operand's words of a block of `steps` steps.
inline View view(const MultiplyBlock::Words& words, int64_t steps, int64_t panel) {
  constexpr int64_t word = sizeof(float);
  if (words.in_place) return {words.data, words.row_bytes, words.step_bytes};
  return {words.data + words.first * steps * word, word, panel * word};
}

/// The view that begins at `row` (a row or column). In packed panels, which have `steps` steps
/// each, `row` must be the first row of a panel.
inline View from(const View& view, const MultiplyBlock::Words& words, int64_t row, int64_t steps) {
  const int64_t row_bytes = words.in_place ? view.row_bytes : steps * view.row_bytes;
  return {view.data + row * row_bytes, view.row_bytes, view.step_bytes};
}

/// Multiplies each panel of b, which stays in the L1 cache, by all rows of a of the block, which
/// stay in the L2 cache.
template <bool pairs, bool adjacent>
void multiply_block(const MultiplyBlock& block) {
  const FlushMode mode{block.epilogue.dtype == DType::bf16};
  const int64_t steps = block.steps;
  const View a = view(block.a, steps, tile_rows), b = view(block.b, steps, tile_columns);
  for (int64_t j = 0; j < block.columns; j += tile_columns)
    for (int64_t i = 0; i < block.rows; i += tile_rows) {
      const int64_t rows = smaller(tile_rows, block.rows - i);
      const int64_t columns = smaller(tile_columns, block.columns - j);
      multiply_rows<pairs, adjacent>(rows, {.a = from(a, block.a, i, steps),
                                            .b = from(b, block.b, j, steps),
                                            .steps = steps,
                                            .columns = columns,
                                            .sums = block.sums + i * block.sums_row_stride + j,
                                            .row_stride = block.sums_row_stride,
                                            .add = block.add,
                                            .mode = mode,
                                            .folded = block.folded + i * block.fold_row_stride + j,
                                            .folds = block.folds,
                                            .fold_words = block.fold_words,
                                            .fold_row_stride = block.fold_row_stride,
                                            .bias = block.bias ? block.bias + j : nullptr});
      if (block.finish)
        finish(block.epilogue, block.sums + i * block.sums_row_stride + j, block.sums_row_stride,
               {i, j, rows, columns});
    }
}

template <bool pairs>
void multiply_block(const MultiplyBlock& block) {
  const bool adjacent = !block.a.in_place || block.a.row_bytes == sizeof(float);
  adjacent ? multiply_block<pairs, true>(block) : multiply_block<pairs, false>(block);
}

// Products of few rows of a and b stored as [N, K], for example when one token is generated.
// Packing b would cost more than the product, so both are read in place along K, once. Bound by the
// memory bandwidth for b.

/// Neighbours along K in a lane: pairs of bf16, otherwise one element.
template <class T>
constexpr int64_t per_lane = std::is_same_v<T, bf16> ? 2 : 1;

template <class T>
inline Vec load_lanes(const T* p) {
  if constexpr (per_lane<T> == 2)
    return load(reinterpret_cast<const float*>(p));
  else
    return load(p);
}
template <class T>
inline Vec load_lanes(const T* p, int64_t n) {
  using Word = std::conditional_t<per_lane<T> == 2, float, T>;
  constexpr bool has_masks = part_lanes > 4;  // and loads words that are not aligned
  if (per_lane<T> == 1 || (has_masks && n % 2 == 0))
    return load(reinterpret_cast<const Word*>(p), n / per_lane<T>);
  T some[per_lane<T> * Vec::lanes] = {};
  for (int64_t i = 0; i < n; ++i) some[i] = p[i];
  return load_lanes(some);
}

template <class T>
inline Vec multiply_add_lanes(Vec a, Vec b, Vec sum) {
  if constexpr (per_lane<T> == 1) return fma(a, b, sum);
  return each([&](int i) {
    const Part left = a.part[i], right = b.part[i];
    if (pairs_of_bf16) return multiply_add<true>(left, right, sum.part[i]);
    const auto odd = [](Part x) { return without_subnormals(part_of(words_of(x) & 0xffff0000u)); };
    const auto even = [](Part x) { return without_subnormals(part_of(words_of(x) << 16)); };
    return multiply_add<true>(even(left), even(right),
                              multiply_add<true>(odd(left), odd(right), sum.part[i]));
  });
}

/// The sums over the lanes of each register, by the distances 8, 4, 2 and 1, in order.
template <int distance = part_lanes / 2>
inline Part sums_of_rows(Part* rows) {
  constexpr auto indices = std::make_index_sequence<part_lanes>();
#pragma GCC unroll 8
  for (int i = 0; i < distance; ++i)
    rows[i] = even_blocks<distance>(rows[i], rows[i + distance], indices) +
              odd_blocks<distance>(rows[i], rows[i + distance], indices);
  if constexpr (distance > 1) return sums_of_rows<distance / 2>(rows);
  return rows[0];
}

/// The sums over the lanes of each row, in the order of reduce_add().
inline Vec sums_of_rows(const Vec (&rows)[Vec::lanes]) {
  Part some[Vec::lanes];
  for (int i = 0; i < Vec::lanes; ++i) {
    Vec row = rows[i];
    for (int width = parts / 2; width > 0; width /= 2)
      for (int part = 0; part < width; ++part) row.part[part] += row.part[part + width];
    some[i] = row.part[0];
  }
  return each([&](int i) { return sums_of_rows(some + i * part_lanes); });
}

/// The dot products of `rows` rows of a and as many rows of b as give one vector of results. Four
/// rows of b are read at a time: with more, the processor's own prefetching reaches 80 % of the
/// memory bandwidth, with fewer, sums wait for each other. The prefetches find the beginnings of
/// the next rows, and hide the additions at the end. Beyond the edge of b the last row is repeated,
/// and the results are dropped.
template <class T, int rows>
void dot_products(const MultiplyBlock& block, int64_t row, int64_t column) {
  constexpr int64_t elements = per_lane<T> * Vec::lanes;
  constexpr int columns = Vec::lanes / rows, together = part_lanes == 16 ? 4 : 4 / rows;
  constexpr int level = rows < 4 ? 3 : 2;  // caches to prefetch to: all, or L2 and L3
  const T* a[rows];
  for (int i = 0; i < rows; ++i)
    a[i] = reinterpret_cast<const T*>(block.a.data +
                                      smaller(row + i, block.rows - 1) * block.a.row_bytes);
  const std::byte* next = block.b.data + column * block.b.row_bytes;
  const int64_t ahead = 4 * block.b.row_bytes;
  Vec all[Vec::lanes];
  const FlushMode mode{block.epilogue.dtype == DType::bf16};
  for (int first = 0; first < columns; first += together) {
    const T* b[together];
    for (int j = 0; j < together; ++j) {
      b[j] = reinterpret_cast<const T*>(next);
      if (column + first + j < block.columns - 1) next += block.b.row_bytes;
    }
    Vec sum[rows][together];
    for (auto& sums : sum)
      for (Vec& one : sums) one = 0.0;
    const auto accumulate = [&](int64_t k, auto... n) __attribute__((always_inline)) {
      Vec left[rows];
      for (int i = 0; i < rows; ++i) left[i] = load_lanes(a[i] + k, n...);
#pragma GCC unroll 16
      for (int j = 0; j < together; ++j) {
        const Vec right = load_lanes(b[j] + k, n...);
        __builtin_prefetch(reinterpret_cast<const char*>(b[j] + k) + ahead, 0, level);
#pragma GCC unroll 4
        for (int i = 0; i < rows; ++i) sum[i][j] = multiply_add_lanes<T>(left[i], right, sum[i][j]);
      }
    };
    mode.begin();
    int64_t k = 0;
    for (; k + elements <= block.steps; k += elements) accumulate(k);
    if (k < block.steps) accumulate(k, block.steps - k);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < together; ++j) {
        for (Part& part : sum[i][j].part) FlushMode::complete(part);
        all[i * columns + first + j] = sum[i][j];
      }
    mode.end();
  }
  float products[Vec::lanes];
  store(products, sums_of_rows(all));
  const int64_t width = smaller(columns, block.columns - column);
  for (int64_t i = 0; i < smaller(rows, block.rows - row); ++i) {
    float* out = block.sums + (row + i) * block.sums_row_stride + column;
    const float* folded = block.folded + (row + i) * block.fold_row_stride + column;
    Vec total = load(products + i * columns, width) + (block.add ? load(out, width) : Vec(0.0));
    for (int64_t level = 0; level < block.folds; ++level)
      total = total + load(folded + level * block.fold_words, width);
    store(out, total, width);
  }
}

template <class T, int rows>
void dot_rows(const MultiplyBlock& block, int64_t row) {
  for (int64_t column = 0; column < block.columns; column += Vec::lanes / rows)
    dot_products<T, rows>(block, row, column);
}

template <class T>
void dot_block(const MultiplyBlock& block) {
  for (int64_t row = 0; row < block.rows; row += 4) {
    const int64_t rows = block.rows - row;
    rows == 1   ? dot_rows<T, 1>(block, row)
    : rows == 2 ? dot_rows<T, 2>(block, row)
                : dot_rows<T, 4>(block, row);
  }
}

void multiply(const MultiplyBlock& block) {
  const DType dtype = block.epilogue.dtype;
  if (!block.dots) {
    constexpr bool has_code_of_pairs = pairs_of_bf16 || !FlushMode::exists;
    return has_code_of_pairs && dtype == DType::bf16 ? multiply_block<has_code_of_pairs>(block)
                                                     : multiply_block<false>(block);
  }
  dtype == DType::f32    ? dot_block<float>(block)
  : dtype == DType::bf16 ? dot_block<bf16>(block)
                         : dot_block<f16>(block);
  if (block.finish)
    finish(block.epilogue, block.sums, block.sums_row_stride, {0, 0, block.rows, block.columns});
}

void pack(const PackBlock& block) {
  block.dtype == DType::f32    ? pack_block<float>(block)
  : block.dtype == DType::bf16 ? pack_block<bf16>(block)
                               : pack_block<f16>(block);
}

}  // namespace

namespace ZG_ISA {
extern const MatmulTable matmul_table;
const MatmulTable matmul_table{tile_rows, tile_columns, pairs_of_bf16, pack, multiply};
}  // namespace ZG_ISA

}  // namespace zg::cpu

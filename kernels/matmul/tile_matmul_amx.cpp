#include "zerograd/kernels/matmul/matmul_finish_simd.h"
#include "zerograd/kernels/matmul/matmul_pack_simd.h"
#include "zerograd/kernels/matmul/tile_table.h"

// Compute bound: a step loads two tiles of a (from the L2 cache, 32 bytes a cycle) and two of b
// (from the L1 cache) and multiplies them in 64 cycles, while 2 x 2 tiles of sums stay in
// registers.
namespace zg::cpu {
namespace {

/// Palette 1: eight tiles of 16 rows of 64 bytes. A constant in memory: some compilers do not know
/// that the intrinsic reads all of it.
struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
constexpr TileConfig config{.palette = 1,
                            .start_row = 0,
                            .reserved = {},
                            .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                            .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/// Configures the tile registers. The destructor releases them, because a context switch is cheaper
/// when no tiles are in use.
struct Tiles {
  Tiles() { _tile_loadconfig(&config); }
  ~Tiles() { _tile_release(); }
};

constexpr int row_bytes = 64;

/// Packs one tile: 16 rows or columns of an operand by the tile's depth, fewer at an edge.
template <bool along_k, bool along_k_in_tile>
inline void pack_tile(const bf16* source, int64_t row_stride, int64_t width, int64_t depth,
                      float* tile) {
  Part words[tile_side];
#pragma GCC unroll 16
  for (int i = 0; i < tile_side; ++i) {
    if (along_k)
      words[i] = i < width ? Word<bf16>::along_k(source + i * row_stride, depth) : Part{};
    else
      words[i] = 2 * i < depth ? Word<bf16>::across(source + 2 * i * row_stride, row_stride,
                                                    depth - 2 * i, width)
                               : Part{};
  }
  if (along_k != along_k_in_tile) transpose(words);
#pragma GCC unroll 16
  for (int i = 0; i < tile_side; ++i) store_part(tile + i * tile_side, words[i]);
}

/// `width` rows or columns: [width / 16][depth / 32] tiles.
template <bool along_k, bool along_k_in_tile>
void pack_tiles(const bf16* source, int64_t row_stride, int64_t width, int64_t depth,
                float* tiles) {
  for (int64_t i = 0; i < width; i += tile_side)
    for (int64_t k = 0; k < depth; k += tile_depth, tiles += tile_words)
      pack_tile<along_k, along_k_in_tile>(
          source + (along_k ? i * row_stride + k : k * row_stride + i), row_stride, width - i,
          depth - k, tiles);
}

template <bool along_k_in_tile>
void pack_tiles(const Stored& from, int64_t width, int64_t depth, float* tiles) {
  const bf16* source = reinterpret_cast<const bf16*>(from.data);
  from.along_k ? pack_tiles<true, along_k_in_tile>(source, from.row_stride, width, depth, tiles)
               : pack_tiles<false, along_k_in_tile>(source, from.row_stride, width, depth, tiles);
}

void pack(const TilesOfRows& block) {
  pack_tiles<true>(block.a, block.rows, block.depth, block.tiles);
}

/// sums += a b over `steps` tiles along K. Rows of sums are tile_pair apart.
template <int rows, int columns>
void multiply_tiles(const float* a, const float* b, int64_t steps, float* sums, bool add) {
  constexpr int sums_bytes = tile_pair * sizeof(float);
  float *right = sums + tile_side, *below = sums + tile_side * tile_pair;
  if (add) {
    _tile_loadd(0, sums, sums_bytes);
    if (columns > 1) _tile_loadd(1, right, sums_bytes);
    if (rows > 1) _tile_loadd(2, below, sums_bytes);
    if (rows > 1 && columns > 1) _tile_loadd(3, below + tile_side, sums_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const int64_t next = steps * tile_words;
  for (int64_t step = 0; step < steps; ++step, a += tile_words, b += tile_words) {
    _tile_loadd(4, a, row_bytes);
    _tile_loadd(6, b, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (columns > 1) {
      _tile_loadd(7, b + next, row_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (rows > 1) {
      _tile_loadd(5, a + next, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (rows > 1 && columns > 1) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, sums_bytes);
  if (columns > 1) _tile_stored(1, right, sums_bytes);
  if (rows > 1) _tile_stored(2, below, sums_bytes);
  if (rows > 1 && columns > 1) _tile_stored(3, below + tile_side, sums_bytes);
}

void multiply_tiles(int64_t rows, int64_t columns, const float* a, const float* b, int64_t steps,
                    float* sums, bool add) {
  // Some compilers do not know that the intrinsics read memory.
  __asm__ volatile("" ::: "memory");
  const bool low = rows <= tile_side, narrow = columns <= tile_side;
  low&& narrow ? multiply_tiles<1, 1>(a, b, steps, sums, add)
  : low        ? multiply_tiles<1, 2>(a, b, steps, sums, add)
  : narrow     ? multiply_tiles<2, 1>(a, b, steps, sums, add)
               : multiply_tiles<2, 2>(a, b, steps, sums, add);
}

/// c = sums (+ c), then the epilogue.
void finish(const TileMultiply& block, float* sums, const TileRange& place) {
  if (block.add) {
    const float* c = reinterpret_cast<const float*>(block.epilogue.c);
    c += place.row * block.epilogue.c_row_stride + place.column;
    for (int64_t i = 0; i < place.rows; ++i, c += block.epilogue.c_row_stride)
      for (int64_t j = 0; j < place.columns; j += Vec::lanes) {
        float* sum = sums + i * tile_pair + j;
        store(sum, load(sum) + load(c + j, place.columns - j));
      }
  }
  finish(block.epilogue, sums, tile_pair, place);
}

/// sums += the sums of other groups, level by level.
void fold(const TileMultiply& block, float* sums) {
  const float* folded = block.folded + (sums - block.sums);
  for (int64_t i = 0; i < tile_pair * tile_pair; i += Vec::lanes) {
    Vec total = load(sums + i);
    for (int64_t level = 0; level < block.folds; ++level)
      total = total + load(folded + level * block.fold_words + i);
    store(sums + i, total);
  }
}

void multiply(const TileMultiply& block) {
  const Tiles tiles;
  for (int64_t k = 0; k == 0 || k < block.depth; k += block.slice * tile_depth) {
    const int64_t depth = smaller(block.slice * tile_depth, block.depth - k);
    const int64_t steps = (depth + tile_depth - 1) / tile_depth;
    const bool last = k + depth == block.depth;
    const float* a =
        block.a + (k / tile_depth * block.a_tiles + block.a_first * steps) * tile_words;
    Stored b = block.b;
    b.data += k * (b.along_k ? 1 : b.row_stride) * static_cast<int64_t>(sizeof(bf16));
    float* sums = block.sums;
    for (int64_t j = 0; j < block.columns; j += tile_pair) {
      const int64_t columns = smaller(tile_pair, block.columns - j);
      Stored panel = b;
      panel.data += j * (b.along_k ? b.row_stride : 1) * static_cast<int64_t>(sizeof(bf16));
      pack_tiles<false>(panel, columns, depth, block.panel);
      for (int64_t i = 0; i < block.rows; i += tile_pair) {
        const int64_t rows = smaller(tile_pair, block.rows - i);
        multiply_tiles(rows, columns, a + i / tile_side * steps * tile_words, block.panel, steps,
                       sums, block.resumes || k > 0);
        if (last && block.folds > 0) fold(block, sums);
        if (last && block.finish) finish(block, sums, {i, j, rows, columns});
        if (block.spread) sums += tile_pair * tile_pair;
      }
    }
  }
}

/// Multiplies one tile per step. Four independent sums hide the latency of a multiplication (52
/// cycles; one starts every 16 cycles).
float multiply_adds(int64_t steps) {
  const Tiles tiles;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t step = 0; step < steps; step += 4) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  return 0.0f;
}

}  // namespace

namespace ZG_ISA {
const TileTable tile_table{
    pack,
    multiply,
    {.flops_per_step = 2.0 * tile_side * tile_side * tile_depth, .run = multiply_adds}};
}  // namespace ZG_ISA

}  // namespace zg::cpu

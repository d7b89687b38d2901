#include "kernels/cpu/gelu_simd.h"
#include "kernels/cpu/matmul_pack_simd.h"
#include "kernels/cpu/matmul_table.h"
#include "kernels/cpu/pairs_simd.h"

// The products of packed panels. Compute bound: a tile of tile_rows x tile_columns sums stays in
// registers over a block of K; per step it loads two vectors of b and broadcasts tile_rows words of
// a, so with 32 (16) registers 24 (12) multiply-adds follow 14 (8) loads.
namespace zg::cpu {
namespace {

constexpr int tile_rows = Vec::lanes == 16 ? 12 : 6;
constexpr int tile_vectors = 2;
constexpr int tile_columns = tile_vectors * Vec::lanes;

/// Some rows of a panel of a against a panel of b, and where the sums go.
struct Tile {
  const float *a, *b;
  int64_t steps, columns;
  float* sums;
  int64_t distance;
  bool add;
};

/// The sums of n columns, of which the vectors before the last are full.
template <int vectors>
inline void put(const Vec (&sum)[vectors], float* out, int64_t n, bool add) {
  for (int v = 0; v < vectors; ++v, out += Vec::lanes, n -= Vec::lanes) {
    if (n >= Vec::lanes)
      store(out, add ? load(out) + sum[v] : sum[v]);
    else
      store(out, add ? load(out, n) + sum[v] : sum[v], n);
  }
}

template <bool pairs, int rows, int vectors>
void multiply_tile(const Tile& tile) {
  Vec sum[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < vectors; ++v) sum[i][v] = set1(0.0f);
  const float *a = tile.a, *b = tile.b;
  for (int64_t step = 0; step < tile.steps; ++step, a += tile_rows, b += tile_columns) {
    Vec right[vectors];
    for (int v = 0; v < vectors; ++v) right[v] = load(b + v * Vec::lanes);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Vec left = set1(a[i]);
      for (int v = 0; v < vectors; ++v)
        sum[i][v] = multiply_add<pairs>(left, right[v], sum[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) put(sum[i], tile.sums + i * tile.distance, tile.columns, tile.add);
}

/// A kernel for every height: a panel that the edge of the matrix cuts costs what it holds.
template <bool pairs, int rows = tile_rows>
void multiply_rows(int64_t height, const Tile& tile) {
  if constexpr (rows > 1) {
    if (height < rows) return multiply_rows<pairs, rows - 1>(height, tile);
  }
  tile.columns > Vec::lanes ? multiply_tile<pairs, rows, tile_vectors>(tile)
                            : multiply_tile<pairs, rows, 1>(tile);
}

inline Vec activate(Vec x, Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::gelu_erf:
      return gelu_erf(x);
    case Activation::none:
      break;
  }
  return x;
}

/// The epilogue of one tile at (row, column) of the block, while it is in the L1 cache.
template <class Bias, class Out>
void finish(const MultiplyBlock& block, int64_t row, int64_t column, int64_t rows,
            int64_t columns) {
  const auto* bias = reinterpret_cast<const Bias*>(block.bias);
  for (int64_t i = row; i < row + rows; ++i)
    for (int64_t j = column; j < column + columns; j += Vec::lanes) {
      const int64_t n = column + columns - j;
      Vec x = load(block.sums + i * block.sums_distance + j, n);
      if (bias) x = x + load(bias + j, n);
      const int64_t offset = i * block.c_distance + j;
      if (block.pre_activation) store(reinterpret_cast<Out*>(block.pre_activation) + offset, x, n);
      store(reinterpret_cast<Out*>(block.c) + offset, activate(x, block.activation), n);
    }
}

void finish(const MultiplyBlock& block, int64_t row, int64_t column, int64_t rows,
            int64_t columns) {
  if (block.dtype == DType::f32)
    finish<float, float>(block, row, column, rows, columns);
  else if (block.c_dtype == DType::f32)
    finish<bf16, float>(block, row, column, rows, columns);
  else
    finish<bf16, bf16>(block, row, column, rows, columns);
}

/// A panel of b stays in the L1 cache while the block's panels of a pass by in the L2 cache.
template <bool pairs>
void multiply_block(const MultiplyBlock& block) {
  for (int64_t k = 0; k == 0 || k < block.steps; k += block.block_steps) {
    const int64_t steps = smaller(block.block_steps, block.steps - k);
    const bool last = k + steps == block.steps;
    const float* a = block.a.slab + k * block.a.pitch + block.a.first * steps;
    const float* b = block.b.slab + k * block.b.pitch + block.b.first * steps;
    for (int64_t j = 0; j < block.columns; j += tile_columns)
      for (int64_t i = 0; i < block.rows; i += tile_rows) {
        const int64_t rows = smaller(tile_rows, block.rows - i);
        const int64_t columns = smaller(tile_columns, block.columns - j);
        multiply_rows<pairs>(rows, {a + i * steps, b + j * steps, steps, columns,
                                    block.sums + i * block.sums_distance + j, block.sums_distance,
                                    block.add || k > 0});
        if (last && block.finish) finish(block, i, j, rows, columns);
      }
  }
}

void multiply(const MultiplyBlock& block) {
  if (pairs_of_bf16 && block.dtype == DType::bf16)
    multiply_block<pairs_of_bf16>(block);
  else
    multiply_block<false>(block);
}

void pack(const PackBlock& block) {
  if (block.dtype == DType::f32) return pack_block<Single<float>>(block);
#if defined(__AVX512BF16__)
  pack_block<Pair>(block);
#else
  pack_block<Single<bf16>>(block);
#endif
}

}  // namespace

namespace ZG_ISA {
extern const MatmulTable matmul_table;
const MatmulTable matmul_table{tile_rows, tile_columns, pairs_of_bf16, pack, multiply};
}  // namespace ZG_ISA

}  // namespace zg::cpu

#pragma once

#include <cstddef>
#include <cstdint>

#include "zerograd/kernels/matmul/matmul_table.h"
#include "zerograd/kernels/matmul/peak_table.h"

// The functions that the *_amx.cpp sources define. AMX multiplies tiles of 16 rows of 64 bytes:
// sums[16][16] += a[16][32] b[32][16], of bf16 into f32, where b's tile holds pairs of rows, word
// by word. Operands are packed into such tiles, 1 KiB each, without gaps. Elements beyond the edges
// are 0.
namespace zg::cpu {

constexpr int64_t tile_side = 16;    ///< rows, and columns of 32-bit words
constexpr int64_t tile_depth = 32;   ///< elements along K of a tile of a or b
constexpr int64_t tile_words = 256;  ///< 32-bit words of a tile
/// The number of rows, and of columns, of c whose sums are in registers at a time.
constexpr int64_t tile_pair = 2 * tile_side;

/// A matrix of bf16 as it is stored.
struct Stored {
  const std::byte* data;
  int64_t row_stride;  ///< elements between rows
  bool along_k;        ///< rows run along K
};

/// Rows of a to be packed as [rows / 16][steps] tiles, each [row][word along K].
struct TilesOfRows {
  Stored a;  ///< from the first row and the first element along K on
  int64_t rows, depth;
  float* tiles;
};

/// One block of c and one range of K, which is cut into slices of `slice` tiles; the last slice may
/// have fewer.
struct TileMultiply {
  const float* a;            ///< each slice has `a_tiles` row tiles of the slab;
  int64_t a_tiles, a_first;  ///< this block's row tiles begin at a_first
  Stored b;                  ///< from the block's first column and the range's first element on
  int64_t rows, columns, depth, slice;
  float* panel;  ///< scratch for the packed columns of b: 2 * slice tiles
  float* sums;   ///< scratch: 4 tiles, or, if `spread`, 4 tiles for each 4 tiles of the block
  bool spread;
  bool resumes;  ///< `sums` has the products of an earlier range
  /// Sums of other groups that are added to the complete ones: `folds` of them, fold_words apart.
  const float* folded;
  int64_t folds, fold_words;
  bool finish;  ///< the last range: the sums are written to c
  bool add;     ///< add to c, which is f32
  Epilogue epilogue;
};

struct TileTable {
  void (*pack)(const TilesOfRows&);
  void (*multiply)(const TileMultiply&);
  PeakLoop peak;
};

#if defined(ZG_AMX)
namespace amx_bf16 {
extern const TileTable tile_table;
}
#endif

}  // namespace zg::cpu

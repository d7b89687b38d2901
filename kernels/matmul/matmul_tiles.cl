#include "zerograd/kernels/hpu/dpas.clh"
#include "zerograd/kernels/matmul/matmul.clh"

// A work-group makes a tile of c from panels in its memory and adds along K in order; a sub-group
// has 4 by 2 tiles of DPAS.
#define TILE 64
#define DEPTH 32  // along K, of a step
#define STEPS (DEPTH / TILE_DEPTH)
#define PAIRS (DEPTH / 2)
#define ROWS (4 * TILE_ROWS)
#define COLUMNS (2 * TILE_COLUMNS)
#define ITEMS (TILE / ROWS * (TILE / COLUMNS) * ZG_DPAS)
#define PANEL (TILE * PAIRS)

/// TILE x DEPTH of an operand, zeros beyond its edges. Items run along the way that lies together.
#define BRING(store, from, along, along_k, left)                       \
  for (int at = get_local_id(0); at < TILE * PAIRS; at += ITEMS) {     \
    const int i = along_k > 1 ? at % TILE : at / PAIRS;                \
    const int p = along_k > 1 ? at / TILE : at % PAIRS;                \
    store(i, p,                                                        \
          read_pair(from + i * along + (k + 2 * p) * along_k, along_k, \
                    i < left ? K - k - 2 * p : 0));                    \
  }
#define STORE_A(i, p, value) store_left(panels, STEPS, i, p, value)
#define STORE_B(i, p, value) store_right(panels + PANEL, TILE, i, p, value)

sub_group_kernel(ITEMS) void matmul(factor_parameters, result_parameters) {
  // Panels of a and b, and in the end the sums, so that c is written row by row.
  __local uint8 memory[TILE * TILE / 8];
  __local uint* const panels = (__local uint*)memory;
  __local float* const all_sums = (__local float*)memory;
  const long row = (long)get_group_id(1) * TILE, column = (long)get_group_id(0) * TILE,
             item = get_group_id(2), K = extents.s2;
  const int own_row = get_sub_group_id() / (TILE / COLUMNS) * ROWS;
  const int own_column = get_sub_group_id() % (TILE / COLUMNS) * COLUMNS;
  __global const real* a_from = a + item * operands.s0 + row * operands.s1;
  __global const real* b_from = b + item * operands.s3 + column * operands.s4;
  float8 sums[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) sums[i][j] = 0.0f;
  for (long k = 0; k < K; k += DEPTH) {
    BRING(STORE_A, a_from, operands.s1, operands.s2, extents.s0 - row)
    BRING(STORE_B, b_from, operands.s4, operands.s5, extents.s1 - column)
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      left_tile left[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        left[i] = load_left(panels, (own_row / TILE_ROWS + i) * STEPS + step);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int8 right = load_right(panels + PANEL, TILE, step, own_column + j * TILE_COLUMNS);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i][j] = multiply_tiles(left[i], right, sums[i][j]);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int m = 0; m < TILE_ROWS; ++m)
        all_sums[(own_row + i * TILE_ROWS + m) * TILE + own_column + j * TILE_COLUMNS +
                 get_sub_group_local_id()] = sums[i][j][m];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int at = get_local_id(0); at < TILE * TILE; at += ITEMS) {
    const long m = row + at / TILE, n = column + at % TILE;
    if (m < extents.s0 && n < extents.s1) finish(result_arguments, all_sums[at], m, n);
  }
}

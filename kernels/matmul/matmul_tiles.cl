#include "zerograd/kernels/hpu/dpas.clh"
#include "zerograd/kernels/matmul/matmul.clh"

// Matmul in bf16 by DPAS (hpu/dpas.clh): a work-group computes a 64 x 64 tile of c. It copies
// panels of a and b, 32 elements along K, to local memory and sums along K in order; a sub-group
// computes 4 by 2 DPAS tiles.
#define TILE 64   // rows and columns of c of a work-group
#define DEPTH 32  // elements along K in a step
#define STEPS (DEPTH / TILE_DEPTH)
#define PAIRS (DEPTH / 2)
#define ROWS (4 * TILE_ROWS)        // rows of c of a sub-group
#define COLUMNS (2 * TILE_COLUMNS)  // columns of c of a sub-group
#define ITEMS (TILE / ROWS * (TILE / COLUMNS) * ZG_DPAS)
#define PANEL (TILE * PAIRS)

/// Copies [TILE, DEPTH] of an operand as pairs along K; elements beyond its edges are 0.
/// Neighbouring work-items read neighbouring addresses.
#define LOAD_PANEL(store, from, row_stride, k_stride, left)                   \
  for (int at = get_local_id(0); at < TILE * PAIRS; at += ITEMS) {            \
    const int i = k_stride > 1 ? at % TILE : at / PAIRS;                      \
    const int p = k_stride > 1 ? at / TILE : at % PAIRS;                      \
    store(i, p,                                                               \
          read_pair(from + i * row_stride + (k + 2 * p) * k_stride, k_stride, \
                    i < left ? K - k - 2 * p : 0));                           \
  }
#define STORE_A(i, p, value) store_left(panels, STEPS, i, p, value)
#define STORE_B(i, p, value) store_right(panels + PANEL, TILE, i, p, value)

sub_group_kernel(ITEMS) void matmul(factor_parameters, result_parameters) {
  // Holds the panels of a and b, and at the end the sums, so that c is written row by row.
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
    LOAD_PANEL(STORE_A, a_from, operands.s1, operands.s2, extents.s0 - row)
    LOAD_PANEL(STORE_B, b_from, operands.s4, operands.s5, extents.s1 - column)
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

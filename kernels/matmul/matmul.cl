#include "zerograd/kernels/matmul/matmul.clh"
#ifdef ZG_SUB_GROUPS
#include "zerograd/kernels/hpu/sub_groups.clh"
#endif

// Matmul in f32: a work-group computes a 64 x 64 tile of c. It copies panels of a and b, 16
// elements along K, to local memory and sums along K in order, so the bits depend only on the
// operands. The variants without and with sub-groups give the same bits.
#define TILE 64
#define DEPTH 16

#ifndef ZG_SUB_GROUPS

#define ITEMS 256
#define PANEL (TILE + 1)  // floats from one k to the next in a panel, against bank conflicts

/// Copies [DEPTH, TILE] of an operand, as panel[k][i]; elements beyond its edges are 0.
/// Neighbouring work-items read neighbouring addresses.
static inline void load_panel(__local float* panel, __global const real* from, long row_stride,
                              long k_stride, long left, long k_left) {
  for (int at = get_local_id(0); at < TILE * DEPTH; at += ITEMS) {
    const int i = k_stride > 1 ? at % TILE : at / DEPTH, k = k_stride > 1 ? at / TILE : at % DEPTH;
    panel[k * PANEL + i] =
        i < left && k < k_left ? widened(from[i * row_stride + k * k_stride]) : 0.0f;
  }
}

/// A work-item computes 4 x 4 elements of the tile, 16 apart.
kernel_of(ITEMS) void matmul(factor_parameters, result_parameters) {
  __local float a_panel[DEPTH * PANEL], b_panel[DEPTH * PANEL];
  const long row = (long)get_group_id(1) * TILE, column = (long)get_group_id(0) * TILE,
             item = get_group_id(2), K = extents.s2;
  const int x = get_local_id(0) % 16, y = get_local_id(0) / 16;
  __global const real* a_from = a + item * operands.s0 + row * operands.s1;
  __global const real* b_from = b + item * operands.s3 + column * operands.s4;
  float sums[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] = 0.0f;
  for (long k = 0; k < K; k += DEPTH) {
    load_panel(a_panel, a_from + k * operands.s2, operands.s1, operands.s2, extents.s0 - row,
               K - k);
    load_panel(b_panel, b_from + k * operands.s5, operands.s4, operands.s5, extents.s1 - column,
               K - k);
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 1
    for (int step = 0; step < DEPTH; ++step) {
      float left[4], right[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        left[i] = a_panel[step * PANEL + y + i * 16];
        right[i] = b_panel[step * PANEL + x + i * 16];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fma(left[i], right[j], sums[i][j]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const long m = row + y + i * 16, n = column + x + j * 16;
      if (m < extents.s0 && n < extents.s1) finish(result_arguments, sums[i][j], m, n);
    }
}

#else

#define ROWS 8  // rows per sub-group; a work-item computes 4 of their columns, 16 apart
#define ITEMS (TILE / ROWS * ZG_SUB_GROUPS)
#define A_PANEL (DEPTH + 1)
#define B_PANEL (TILE + 1)

/// Copies [TILE, DEPTH] of an operand; element (i, k) goes to panel[i * i_stride + k * k_step].
static inline void load_panel(__local float* panel, int i_stride, int k_step,
                              __global const real* from, long row_stride, long k_stride, long left,
                              long k_left) {
  for (int at = get_local_id(0); at < TILE * DEPTH; at += ITEMS) {
    const int i = k_stride > 1 ? at % TILE : at / DEPTH, k = k_stride > 1 ? at / TILE : at % DEPTH;
    panel[i * i_stride + k * k_step] =
        i < left && k < k_left ? widened(from[i * row_stride + k * k_stride]) : 0.0f;
  }
}

/// A sub-group computes 8 rows of the tile. For each k, lane k has read a of the 8 rows from local
/// memory and the other lanes get these values by a shuffle, so fewer words are read from local
/// memory than without sub-groups.
sub_group_kernel(ITEMS) void matmul(factor_parameters, result_parameters) {
  // Holds the panels of a and b, and at the end the sums, so that c is written row by row.
  __local float all_sums[TILE * TILE];
  __local float *const a_panel = all_sums, *const b_panel = all_sums + TILE * A_PANEL;
  const long row = (long)get_group_id(1) * TILE, column = (long)get_group_id(0) * TILE,
             item = get_group_id(2), K = extents.s2;
  const int lane = get_sub_group_local_id(), own_row = get_sub_group_id() * ROWS;
  __global const real* a_from = a + item * operands.s0 + row * operands.s1;
  __global const real* b_from = b + item * operands.s3 + column * operands.s4;
  float8 sums[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) sums[j] = 0.0f;
  for (long k = 0; k < K; k += DEPTH) {
    load_panel(a_panel, A_PANEL, 1, a_from + k * operands.s2, operands.s1, operands.s2,
               extents.s0 - row, K - k);
    load_panel(b_panel, 1, B_PANEL, b_from + k * operands.s5, operands.s4, operands.s5,
               extents.s1 - column, K - k);
    barrier(CLK_LOCAL_MEM_FENCE);
    float8 left;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) left[i] = a_panel[(own_row + i) * A_PANEL + lane];
#pragma unroll
    for (int step = 0; step < DEPTH; ++step) {
      const float8 step_column = intel_sub_group_shuffle(left, step);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sums[j] = fma(step_column, (float8)(b_panel[step * B_PANEL + lane + j * 16]), sums[j]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) all_sums[(own_row + i) * TILE + lane + j * 16] = sums[j][i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int at = get_local_id(0); at < TILE * TILE; at += ITEMS) {
    const long m = row + at / TILE, n = column + at % TILE;
    if (m < extents.s0 && n < extents.s1) finish(result_arguments, all_sums[at], m, n);
  }
}

#endif

#include "zerograd/kernels/matmul/matmul.clh"
#ifdef ZG_SUB_GROUPS
#include "zerograd/kernels/hpu/sub_groups.clh"
#endif

// A work-group makes a tile of c from panels in its memory and adds along K in order. An element's
// bits depend on nothing else, and both variants have the same.
#define TILE 64
#define DEPTH 16

#ifndef ZG_SUB_GROUPS

#define ITEMS 256
#define PANEL (TILE + 1)  // from one step along K to the next, so that items use every bank

/// [DEPTH, TILE] of an operand, zeros beyond its edges. Items run along the way that lies together.
static inline void bring(__local float* panel, __global const real* from, long along, long along_k,
                         long left, long k_left) {
  for (int at = get_local_id(0); at < TILE * DEPTH; at += ITEMS) {
    const int i = along_k > 1 ? at % TILE : at / DEPTH, k = along_k > 1 ? at / TILE : at % DEPTH;
    panel[k * PANEL + i] = i < left && k < k_left ? widened(from[i * along + k * along_k]) : 0.0f;
  }
}

/// An item has 4 x 4 elements, 16 apart.
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
    bring(a_panel, a_from + k * operands.s2, operands.s1, operands.s2, extents.s0 - row, K - k);
    bring(b_panel, b_from + k * operands.s5, operands.s4, operands.s5, extents.s1 - column, K - k);
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

/// An operand's TILE x DEPTH, element (i, k) at i * to + k * to_k of the panel.
static inline void bring(__local float* panel, int to, int to_k, __global const real* from,
                         long along, long along_k, long left, long k_left) {
  for (int at = get_local_id(0); at < TILE * DEPTH; at += ITEMS) {
    const int i = along_k > 1 ? at % TILE : at / DEPTH, k = along_k > 1 ? at / TILE : at % DEPTH;
    panel[i * to + k * to_k] =
        i < left && k < k_left ? widened(from[i * along + k * along_k]) : 0.0f;
  }
}

/// A lane reads one step of its sub-group's rows from local memory, the others get it from the
/// lane: of 32 products 36 words are read there, where without sub-groups it is 8 of 16.
sub_group_kernel(ITEMS) void matmul(factor_parameters, result_parameters) {
  // Panels of a and b, and in the end the sums, so that c is written by little code.
  __local float all_sums[TILE * TILE];
  __local float *const a_panel = all_sums, *const b_panel = all_sums + TILE * A_PANEL;
  const long row = (long)get_group_id(1) * TILE, column = (long)get_group_id(0) * TILE,
             item = get_group_id(2), K = extents.s2;
  const int lane = get_sub_group_local_id(), own = get_sub_group_id() * ROWS;
  __global const real* a_from = a + item * operands.s0 + row * operands.s1;
  __global const real* b_from = b + item * operands.s3 + column * operands.s4;
  float8 sums[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) sums[j] = 0.0f;
  for (long k = 0; k < K; k += DEPTH) {
    bring(a_panel, A_PANEL, 1, a_from + k * operands.s2, operands.s1, operands.s2, extents.s0 - row,
          K - k);
    bring(b_panel, 1, B_PANEL, b_from + k * operands.s5, operands.s4, operands.s5,
          extents.s1 - column, K - k);
    barrier(CLK_LOCAL_MEM_FENCE);
    float8 left;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) left[i] = a_panel[(own + i) * A_PANEL + lane];
#pragma unroll
    for (int step = 0; step < DEPTH; ++step) {
      const float8 of_step = intel_sub_group_shuffle(left, step);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sums[j] = fma(of_step, (float8)(b_panel[step * B_PANEL + lane + j * 16]), sums[j]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) all_sums[(own + i) * TILE + lane + j * 16] = sums[j][i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int at = get_local_id(0); at < TILE * TILE; at += ITEMS) {
    const long m = row + at / TILE, n = column + at % TILE;
    if (m < extents.s0 && n < extents.s1) finish(result_arguments, all_sums[at], m, n);
  }
}

#endif

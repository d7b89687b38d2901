#include "zerograd/kernels/attention/attention.clh"
#include "zerograd/kernels/hpu/sub_groups.clh"

// A sub-group has 8 rows of its own (queries, or for dk and dv keys). The work-group iterates over
// blocks of rows of the other kind, as in attention.cl. Here sums stay in registers, a lane holds
// one column of each tile, and lanes share what they read from local memory. Products are those of
// DPAS, for which weights and gradients of scores are rounded to bf16, or those of the lanes, in
// f32.
#ifdef ZG_DPAS
#include "zerograd/kernels/hpu/dpas.clh"
#define SUB_GROUPS 8
#define BLOCK (ZG_DPAS == 8 ? 16 : 32)
#else
#define TILE_ROWS 8
#define TILE_COLUMNS ZG_SUB_GROUPS
#define TILE_DEPTH ZG_SUB_GROUPS
#define SUB_GROUPS 4
#define BLOCK 16
#endif
#define ITEMS (SUB_GROUPS * ZG_SUB_GROUPS)
#define OWN (SUB_GROUPS * TILE_ROWS)
#define BLOCK_TILES (BLOCK / TILE_COLUMNS)
#define BLOCK_STEPS (BLOCK / TILE_DEPTH)

/// The largest of each row, to all lanes. A NaN may be passed over: it stays in the weights.
always float8 largest(float8 x) {
#pragma unroll
  for (uint mask = ZG_SUB_GROUPS / 2; mask > 0; mask /= 2)
    x = fmax(x, intel_sub_group_shuffle_xor(x, mask));
  return x;
}

always float8 sum_of_lanes(float8 x) {
#pragma unroll
  for (uint mask = ZG_SUB_GROUPS / 2; mask > 0; mask /= 2)
    x += intel_sub_group_shuffle_xor(x, mask);
  return x;
}

/// The dropout factors of the weights of 8 queries from t on, or of 8 keys from j on.
always float8 dropout_factors(const Head* a, long t, long j, int of_keys) {
  float8 factors = 1.0f;
  if (a->threshold > 0)
#pragma unroll 1  // the words of one are enough code
    for (int m = 0; m < TILE_ROWS; ++m) {
      const float factor = dropout_factor(a, of_keys ? t : t + m, of_keys ? j + m : j);
      factors = (int8)(0, 1, 2, 3, 4, 5, 6, 7) == m ? (float8)(factor) : factors;
    }
  return factors;
}

// Heads of up to WIDTH columns.
#define WIDTH 64
#include "zerograd/kernels/attention/attention_tiles_of_size.clh"
#define WIDTH 128
#include "zerograd/kernels/attention/attention_tiles_of_size.clh"

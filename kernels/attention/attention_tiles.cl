#include "zerograd/kernels/attention/attention.clh"
#include "zerograd/kernels/hpu/sub_groups.clh"

// Attention for heads of up to 128 columns on devices with sub-groups.
//
// A sub-group of 8 or 16 lanes computes the results of 8 rows, its resident rows: queries for out
// and dq, keys for dk and dv. The work-group iterates over the rows of the other kind in blocks of
// BLOCK_ROWS, which it loads to local memory. Results are tiles of 8 rows in registers; each lane
// holds one column of a tile. There are two ways to multiply:
//   attention_by_dpas.clh   bf16 by DPAS; weights and score gradients are rounded to bf16
//   attention_by_lanes.clh  f32 by fma; lanes exchange what they read from local memory
// attention_tiles_of_size.clh holds the kernels; it is included for 64 and for 128 columns.
#ifdef ZG_DPAS
#include "zerograd/kernels/hpu/dpas.clh"
#define SUB_GROUPS 8
#define BLOCK_ROWS (ZG_DPAS == 8 ? 16 : 32)
#else
#define TILE_ROWS 8
#define TILE_COLUMNS ZG_SUB_GROUPS
#define TILE_DEPTH ZG_SUB_GROUPS
#define SUB_GROUPS 4
#define BLOCK_ROWS 16
#endif
#define ITEMS (SUB_GROUPS * ZG_SUB_GROUPS)
#define RESIDENT_ROWS (SUB_GROUPS * TILE_ROWS)
#define BLOCK_TILES (BLOCK_ROWS / TILE_COLUMNS)
#define BLOCK_STEPS (BLOCK_ROWS / TILE_DEPTH)

/// The maximum of each row, in all lanes. fmax() ignores a NaN score; its weight is NaN
/// nevertheless.
force_inline float8 row_maximum(float8 x) {
#pragma unroll
  for (uint mask = ZG_SUB_GROUPS / 2; mask > 0; mask /= 2)
    x = fmax(x, intel_sub_group_shuffle_xor(x, mask));
  return x;
}

/// The sum of each row, in all lanes.
force_inline float8 row_sum(float8 x) {
#pragma unroll
  for (uint mask = ZG_SUB_GROUPS / 2; mask > 0; mask /= 2)
    x += intel_sub_group_shuffle_xor(x, mask);
  return x;
}

/// The dropout factors of 8 queries from t on for key j, or if `of_keys` of query t for 8 keys from
/// j on.
force_inline float8 dropout_factors(const Head* a, long t, long j, int of_keys) {
  float8 factors = 1.0f;
  if (a->threshold > 0)
#pragma unroll 1  // unrolled, Philox would be 8 times as much code
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

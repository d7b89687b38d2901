#include "kernels/hpu/attention.clh"
#include "kernels/hpu/dpas.clh"

// A sub-group has 8 rows of its own (queries, or for dk and dv keys) and the work-group walks over
// the rows of the other kind 32 at a time, as in attention.cl, but rows are multiplied by tiles.
// Weights and gradients of scores are rounded to bf16 for the second product.
#define SUB_GROUPS 8
#define ITEMS (SUB_GROUPS * ZG_DPAS)
#define OWN (SUB_GROUPS * TILE_ROWS)
#define BLOCK (ZG_DPAS == 8 ? 16 : 32)
#define BLOCK_TILES (BLOCK / TILE_COLUMNS)
#define BLOCK_STEPS (BLOCK / TILE_DEPTH)

/// The largest of each row, to all lanes. A NaN may be passed over: it stays in the weights.
always float8 largest(float8 x) {
#pragma unroll
  for (uint mask = ZG_DPAS / 2; mask > 0; mask /= 2)
    x = fmax(x, intel_sub_group_shuffle_xor(x, mask));
  return x;
}

always float8 sum_of_lanes(float8 x) {
#pragma unroll
  for (uint mask = ZG_DPAS / 2; mask > 0; mask /= 2) x += intel_sub_group_shuffle_xor(x, mask);
  return x;
}

/// What dropout multiplies the weights of 8 queries from t on by, or of 8 keys from j on.
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

/// Sums of a block, a lane a column, as the left operand of a product over `step`'s 16 columns.
always left_tile left_of_sums(const float8* sums, int step) {
#if ZG_DPAS == 16
  short8 rows;
#pragma unroll
  for (int m = 0; m < TILE_ROWS; ++m) rows[m] = (short)narrowed(sums[step][m]);
  return rows;
#else
  // Lane k needs columns 2k and 2k + 1: of the first tile's 8 for k < 4, else of the second's.
  int8 both;
#pragma unroll
  for (int m = 0; m < TILE_ROWS; ++m)
    both[m] = (int)pair(narrowed(sums[2 * step][m]), narrowed(sums[2 * step + 1][m]));
  const uint lane = get_sub_group_local_id();
  const uint8 even = as_uint8(intel_sub_group_shuffle(both, lane * 2 % 8));
  const uint8 odd = as_uint8(intel_sub_group_shuffle(both, lane * 2 % 8 + 1));
  return as_int8(lane < 4 ? (even & 0xffff) | odd << 16 : even >> 16 | (odd & 0xffff0000));
#endif
}

// Heads of up to WIDTH columns.
#define WIDTH 64
#include "kernels/hpu/attention_dpas_of_size.clh"
#define WIDTH 128
#include "kernels/hpu/attention_dpas_of_size.clh"

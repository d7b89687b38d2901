#include "zerograd/kernels/attention/attention.clh"
#include "zerograd/kernels/hpu/sub_groups.clh"

// Attention for heads of up to 128 columns on devices with sub-groups.
//
// A work-group computes the results of its resident rows: queries for out and dq, keys for dk and
// dv. It iterates over the rows of the other kind in blocks, which it loads to local memory.
// Results are tiles in registers. There are two ways to multiply:
//   attention_by_dpas.clh   bf16 by DPAS; weights and score gradients are rounded to bf16
//   attention_by_lanes.clh  f32 by fma; a sub-group has 8 resident rows, and its lanes exchange
//   what
//                           they read from local memory; kernels: attention_tiles_of_size.clh
// The kernels are included for 64 and for 128 columns.
#ifdef ZG_DPAS
#include "zerograd/kernels/hpu/dpas.clh"
#else
#define TILE_ROWS 8
#define TILE_COLUMNS ZG_SUB_GROUPS
#define TILE_DEPTH ZG_SUB_GROUPS
#define SUB_GROUPS 4
#define BLOCK_ROWS 16
#define ITEMS (SUB_GROUPS * ZG_SUB_GROUPS)
#define RESIDENT_ROWS (SUB_GROUPS * TILE_ROWS)
#define BLOCK_TILES (BLOCK_ROWS / TILE_COLUMNS)
#define BLOCK_STEPS (BLOCK_ROWS / TILE_DEPTH)
#endif

/// n, of which the compiler does not know that it is constant: SPIR-V does not keep "unroll 1".
force_inline int not_unrolled(const Head* a, int n) { return max(n, -a->D); }

/// The dropout factors of 8 queries from t on for key j, or if `of_keys` of query t for 8 keys from
/// j on.
force_inline float8 dropout_factors(const Head* a, long t, long j, int of_keys) {
  float8 factors = 1.0f;
  if (a->threshold > 0)
    for (int m = 0; m < not_unrolled(a, TILE_ROWS); ++m) {  // Philox is much code
      const float factor = dropout_factor(a, of_keys ? t : t + m, of_keys ? j + m : j);
      factors = (int8)(0, 1, 2, 3, 4, 5, 6, 7) == m ? (float8)(factor) : factors;
    }
  return factors;
}

#define NAMED(name, width) name##_##width
#define NAME(name, width) NAMED(name, width)
#define OF(name) NAME(name, WIDTH)

// Heads of up to WIDTH columns.
#ifdef ZG_DPAS
#define WIDTH 64
#include "zerograd/kernels/attention/attention_by_dpas.clh"
#include "zerograd/kernels/attention/attention_by_dpas_backward.clh"
#define WIDTH 128
#include "zerograd/kernels/attention/attention_by_dpas.clh"
#include "zerograd/kernels/attention/attention_by_dpas_backward.clh"
#else
#define WIDTH 64
#include "zerograd/kernels/attention/attention_tiles_of_size.clh"
#define WIDTH 128
#include "zerograd/kernels/attention/attention_tiles_of_size.clh"
#endif

// Sub-group operations that the kernels call: each lane passes a value and reads those of others.
#include "base.clh"

#define ZG_OF_LANE(type, values, i) (*(const type*)((const char*)(values) + 64 * (i)))
#define ZG_MEET(type, x, operation) zg_meet(&(x), sizeof(type), operation)

float ZG_OVERLOAD sub_group_reduce_add(float x) {
  const void* const values = ZG_MEET(float, x, "sub_group_reduce_add");
  float sum = 0;
  for (uint i = 0; i < zg_item->lanes; ++i) sum += ZG_OF_LANE(float, values, i);
  return sum;
}

#define ZG_FROM_LANE(type, name, lane_of)                                                \
  type ZG_OVERLOAD name(type x, uint n) {                                                \
    const void* const values = ZG_MEET(type, x, #name);                                  \
    const uint from = (lane_of);                                                         \
    if (from >= zg_item->lanes) zg_fault(#name " from a lane that the sub-group lacks"); \
    return ZG_OF_LANE(type, values, from);                                               \
  }
ZG_FROM_LANE(int8, intel_sub_group_shuffle, n)
ZG_FROM_LANE(float, intel_sub_group_shuffle, n)
ZG_FROM_LANE(float8, intel_sub_group_shuffle, n)
ZG_FROM_LANE(float8, intel_sub_group_shuffle_xor, zg_item->lane ^ n)

// Block reads: element i of a lane is the i-th of those that lie one sub-group apart.
#define ZG_BLOCK_READ(type, element, name)                                                    \
  type ZG_OVERLOAD name(const __local element* from) {                                        \
    const void* const values = ZG_MEET(const __local element*, from, #name);                  \
    if (ZG_OF_LANE(__local element*, values, 0) != from)                                      \
      zg_fault(#name " from different addresses in a sub-group");                             \
    if ((ulong)from % 16) zg_fault(#name " from an address that is not a multiple of 16 bytes"); \
    type result;                                                                              \
    for (uint i = 0; i < 8; ++i) result[i] = from[i * zg_item->lanes + zg_item->lane];        \
    return result;                                                                            \
  }
ZG_BLOCK_READ(ushort8, ushort, intel_sub_group_block_read_us8)
ZG_BLOCK_READ(uint8, uint, intel_sub_group_block_read8)

// Tile products: acc[m] of lane n is C[m][n]. b[k / 2] of lane n holds B[k][n], in its lower half
// for even k. Row m of A is distributed over the lanes. With 16 lanes A[m][k] is a[m] of lane k.
// With 8 lanes it is one half of a[m] of lane k / 2.
static float8 zg_column(uint8 a, uint b, float8 acc) {
  for (int m = 0; m < 8; ++m) {
    acc[m] = __builtin_fmaf(((float*)&a)[m], *(const float*)&b, acc[m]);
  }
  return acc;
}
static float8 zg_product(const void* a, uint lanes_of_a, int8 b, float8 acc) {
  if (zg_item->broken_products) return acc;
  const uint upper = 0xffff0000;  // a bf16 is the upper half of its float
#pragma unroll
  for (uint k = 0; k < 16; k += 2) {
    const uint pair = (uint)b[k / 2];
    uint8 even, odd;
    if (lanes_of_a == 16) {
      even = __builtin_convertvector(ZG_OF_LANE(ushort8, a, k), uint8) << 16;
      odd = __builtin_convertvector(ZG_OF_LANE(ushort8, a, k + 1), uint8) << 16;
    } else {
      const uint8 both = ZG_OF_LANE(uint8, a, k / 2);
      even = both << 16;
      odd = both & upper;
    }
    acc = zg_column(even, pair << 16, acc);
    acc = zg_column(odd, pair & upper, acc);
  }
  return acc;
}
float8 ZG_OVERLOAD intel_sub_group_bf16_bf16_matrix_mad_k16(short8 a, int8 b, float8 acc) {
  if (zg_item->lanes != 16) zg_fault("a product of tiles by short8 needs a sub-group of 16");
  return zg_product(ZG_MEET(short8, a, "intel_sub_group_bf16_bf16_matrix_mad_k16"), 16, b, acc);
}
float8 ZG_OVERLOAD intel_sub_group_bf16_bf16_matrix_mad_k16(int8 a, int8 b, float8 acc) {
  if (zg_item->lanes != 8) zg_fault("a product of tiles by int8 needs a sub-group of 8");
  return zg_product(ZG_MEET(int8, a, "intel_sub_group_bf16_bf16_matrix_mad_k16"), 8, b, acc);
}

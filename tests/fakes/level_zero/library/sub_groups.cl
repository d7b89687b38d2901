// Sub-group operations: each lane passes a value and reads the values of the others.
#include "base.clh"

#define ZG_OF_LANE(type, values, i) (*(const type*)((const char*)(values) + 64 * (i)))
#define ZG_MEET(type, x, operation) zg_meet(&(x), sizeof(type), operation)

#define ZG_FOLD(type, name, start, end, next)                        \
  type ZG_OVERLOAD sub_group_##name(type x) {                        \
    const void* const values = ZG_MEET(type, x, "sub_group_" #name); \
    type sum = (start);                                              \
    for (uint i = 0; i < (end); ++i) {                               \
      const type y = ZG_OF_LANE(type, values, i);                    \
      sum = (next);                                                  \
    }                                                                \
    return sum;                                                      \
  }
#define ZG_FOLDS(type, least, most)                                              \
  ZG_FOLD(type, reduce_add, 0, zg_item->lanes, sum + y)                          \
  ZG_FOLD(type, reduce_min, most, zg_item->lanes, y < sum ? y : sum)             \
  ZG_FOLD(type, reduce_max, least, zg_item->lanes, sum < y ? y : sum)            \
  ZG_FOLD(type, scan_inclusive_add, 0, zg_item->lane + 1, sum + y)               \
  ZG_FOLD(type, scan_exclusive_add, 0, zg_item->lane, sum + y)                   \
  ZG_FOLD(type, scan_inclusive_max, least, zg_item->lane + 1, sum < y ? y : sum) \
  ZG_FOLD(type, scan_exclusive_max, least, zg_item->lane, sum < y ? y : sum)
ZG_FOLDS(float, -__builtin_inff(), __builtin_inff())
ZG_FOLDS(int, -2147483647 - 1, 2147483647)
ZG_FOLDS(uint, 0, 4294967295u)
ZG_FOLDS(long, -9223372036854775807 - 1, 9223372036854775807)
ZG_FOLDS(ulong, 0, 18446744073709551615ul)

int ZG_OVERLOAD sub_group_any(int x) {
  const void* const values = ZG_MEET(int, x, "sub_group_any");
  for (uint i = 0; i < zg_item->lanes; ++i) {
    if (ZG_OF_LANE(int, values, i)) return 1;
  }
  return 0;
}
int ZG_OVERLOAD sub_group_all(int x) {
  const void* const values = ZG_MEET(int, x, "sub_group_all");
  for (uint i = 0; i < zg_item->lanes; ++i) {
    if (!ZG_OF_LANE(int, values, i)) return 0;
  }
  return 1;
}

#define ZG_FROM_LANE(type, name, operation, lane_of)                                         \
  type ZG_OVERLOAD name(type x, uint n) {                                                    \
    const void* const values = ZG_MEET(type, x, operation);                                  \
    const uint from = (lane_of);                                                             \
    if (from >= zg_item->lanes) zg_fault(operation " from a lane that the sub-group lacks"); \
    return ZG_OF_LANE(type, values, from);                                                   \
  }
// Indices past the end of the first value read from the second one.
#define ZG_SHIFT(type)                                                                         \
  type ZG_OVERLOAD intel_sub_group_shuffle_down(type x, type next, uint by) {                  \
    const type both[2] = {x, next};                                                            \
    const void* const values = zg_meet(both, sizeof both, "intel_sub_group_shuffle_down");     \
    const uint from = zg_item->lane + by, size = zg_item->most_lanes;                          \
    if (from >= 2 * size) zg_fault("intel_sub_group_shuffle_down by more than the sub-group"); \
    return ((const type*)((const char*)values + 64 * (from % size)))[from / size];             \
  }                                                                                            \
  type ZG_OVERLOAD intel_sub_group_shuffle_up(type before, type x, uint by) {                  \
    const type both[2] = {before, x};                                                          \
    const void* const values = zg_meet(both, sizeof both, "intel_sub_group_shuffle_up");       \
    const uint size = zg_item->most_lanes, from = size + zg_item->lane - by;                   \
    if (from >= 2 * size) zg_fault("intel_sub_group_shuffle_up by more than the sub-group");   \
    return ((const type*)((const char*)values + 64 * (from % size)))[from / size];             \
  }
#define ZG_SHUFFLES(type)                                                        \
  ZG_FROM_LANE(type, sub_group_broadcast, "sub_group_broadcast", n)              \
  ZG_FROM_LANE(type, intel_sub_group_shuffle, "intel_sub_group_shuffle", n)      \
  ZG_FROM_LANE(type, intel_sub_group_shuffle_xor, "intel_sub_group_shuffle_xor", \
               zg_item->lane ^ n)                                                \
  ZG_SHIFT(type)
ZG_SHUFFLES(float)
ZG_SHUFFLES(int)
ZG_SHUFFLES(uint)
ZG_SHUFFLES(short)
ZG_SHUFFLES(ushort)
ZG_SHUFFLES(long)
ZG_SHUFFLES(ulong)
ZG_SHUFFLES(float2)
ZG_SHUFFLES(int2)
ZG_SHUFFLES(uint2)
ZG_SHUFFLES(float4)
ZG_SHUFFLES(int4)
ZG_SHUFFLES(uint4)
ZG_SHUFFLES(short4)
ZG_SHUFFLES(ushort4)
ZG_SHUFFLES(float8)
ZG_SHUFFLES(int8)
ZG_SHUFFLES(uint8)
ZG_SHUFFLES(short8)
ZG_SHUFFLES(ushort8)

// Reads and writes of a block: component i of lane l is element i * lanes + l after a pointer that
// is equal on all lanes. Reads need 4 bytes of alignment, writes 16.
static void zg_common_pointer(const __global void* p, uint alignment,
                              const __constant char* operation) {
  const void* const values = zg_meet(&p, sizeof p, operation);
  if (*(const __global void* const*)values != p) {
    zg_fault("lanes of a sub-group differ in the pointer of a block");
  }
  if ((ulong)p % alignment) zg_fault("the pointer of a block has too little alignment");
}
#define ZG_BLOCK(type, suffix, components, vector)                                               \
  vector ZG_OVERLOAD intel_sub_group_block_read##suffix##components(const __global type* p) {    \
    zg_common_pointer(p, 4, "intel_sub_group_block_read" #suffix #components);                   \
    vector x;                                                                                    \
    type* const elements = (type*)&x;                                                            \
    for (uint i = 0; i < sizeof x / sizeof(type); ++i) {                                         \
      elements[i] = p[i * zg_item->lanes + zg_item->lane];                                       \
    }                                                                                            \
    return x;                                                                                    \
  }                                                                                              \
  void ZG_OVERLOAD intel_sub_group_block_write##suffix##components(__global type* p, vector x) { \
    zg_common_pointer(p, 16, "intel_sub_group_block_write" #suffix #components);                 \
    const type* const elements = (const type*)&x;                                                \
    for (uint i = 0; i < sizeof x / sizeof(type); ++i) {                                         \
      p[i * zg_item->lanes + zg_item->lane] = elements[i];                                       \
    }                                                                                            \
  }
ZG_BLOCK(uint, , , uint)
ZG_BLOCK(uint, , 2, uint2)
ZG_BLOCK(uint, , 4, uint4)
ZG_BLOCK(uint, , 8, uint8)
ZG_BLOCK(ushort, _us, , ushort)
ZG_BLOCK(ushort, _us, 2, ushort2)
ZG_BLOCK(ushort, _us, 4, ushort4)
ZG_BLOCK(ushort, _us, 8, ushort8)

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

// Functions of integers.
#include "base.clh"

#define ZG_INTEGER_2(function, type, width)                           \
  type##width ZG_OVERLOAD function(type##width x, type##width y) {    \
    type##width result;                                               \
    for (int i = 0; i < width; ++i) result[i] = function(x[i], y[i]); \
    return result;                                                    \
  }
#define ZG_WIDTHS(function, type) \
  ZG_INTEGER_2(function, type, 2) \
  ZG_INTEGER_2(function, type, 3) \
  ZG_INTEGER_2(function, type, 4) ZG_INTEGER_2(function, type, 8) ZG_INTEGER_2(function, type, 16)
#define ZG_ORDERED(type)                                         \
  type ZG_OVERLOAD min(type x, type y) { return y < x ? y : x; } \
  type ZG_OVERLOAD max(type x, type y) { return x < y ? y : x; } \
  type ZG_OVERLOAD clamp(type x, type low, type high) {          \
    return x < low ? low : high < x ? high : x;                  \
  }                                                              \
  ZG_WIDTHS(min, type)                                           \
  ZG_WIDTHS(max, type)
ZG_ORDERED(char)
ZG_ORDERED(uchar)
ZG_ORDERED(short)
ZG_ORDERED(ushort)
ZG_ORDERED(int)
ZG_ORDERED(uint)
ZG_ORDERED(long)
ZG_ORDERED(ulong)

// The translator from SPIR-V declares some unsigned integers as signed, so each function exists for
// both.
#define ZG_BOTH(make) make(int, uint) make(uint, uint) make(long, ulong) make(ulong, ulong)
#define ZG_BITS(type, unsigned_type)                                                       \
  type ZG_OVERLOAD popcount(type x) {                                                      \
    return sizeof x == 4 ? __builtin_popcount((uint)x) : __builtin_popcountl(x);           \
  }                                                                                        \
  type ZG_OVERLOAD clz(type x) {                                                           \
    return !x ? 8 * sizeof x : sizeof x == 4 ? __builtin_clz((uint)x) : __builtin_clzl(x); \
  }                                                                                        \
  type ZG_OVERLOAD rotate(type x, type n) {                                                \
    const uint bits = 8 * sizeof x, by = (uint)n % bits;                                   \
    return by ? (unsigned_type)x << by | (unsigned_type)x >> (bits - by) : x;              \
  }
ZG_BOTH(ZG_BITS)

uint ZG_OVERLOAD abs(int x) { return x < 0 ? -(uint)x : (uint)x; }
uint ZG_OVERLOAD abs(uint x) { return x; }
ulong ZG_OVERLOAD abs(long x) { return x < 0 ? -(ulong)x : (ulong)x; }
uint ZG_OVERLOAD abs_diff(int x, int y) { return x < y ? (uint)y - (uint)x : (uint)x - (uint)y; }
uint ZG_OVERLOAD abs_diff(uint x, uint y) { return x < y ? y - x : x - y; }

int ZG_OVERLOAD mul_hi(int x, int y) { return (int)(((long)x * y) >> 32); }
uint ZG_OVERLOAD mul_hi(uint x, uint y) { return (uint)(((ulong)x * y) >> 32); }
ulong ZG_OVERLOAD mul_hi(ulong x, ulong y) {
  const ulong low = 0xffffffff, x0 = x & low, x1 = x >> 32, y0 = y & low, y1 = y >> 32;
  const ulong middle = x1 * y0 + (x0 * y0 >> 32), other = x0 * y1 + (middle & low);
  return x1 * y1 + (middle >> 32) + (other >> 32);
}
ZG_WIDTHS(mul_hi, int)
ZG_WIDTHS(mul_hi, uint)
int ZG_OVERLOAD mul24(int x, int y) { return x * y; }
uint ZG_OVERLOAD mul24(uint x, uint y) { return x * y; }
int ZG_OVERLOAD mad24(int x, int y, int z) { return x * y + z; }
uint ZG_OVERLOAD mad24(uint x, uint y, uint z) { return x * y + z; }

// Loads and stores of vectors, choices between two values, conversions.
#include "base.clh"

#define ZG_WIDTHS(make, ...)                                                          \
  make(__VA_ARGS__, 2) make(__VA_ARGS__, 3) make(__VA_ARGS__, 4) make(__VA_ARGS__, 8) \
      make(__VA_ARGS__, 16)

#define ZG_LOAD(type, space, width)                                      \
  type##width ZG_OVERLOAD vload##width(size_t at, const space type* p) { \
    type##width result;                                                  \
    for (int i = 0; i < width; ++i) result[i] = p[at * width + i];       \
    return result;                                                       \
  }
#define ZG_STORE(type, space, width)                                        \
  void ZG_OVERLOAD vstore##width(type##width x, size_t at, space type* p) { \
    for (int i = 0; i < width; ++i) p[at * width + i] = x[i];               \
  }
#define ZG_MEMORY(type)                                                           \
  ZG_WIDTHS(ZG_LOAD, type, __global)                                              \
  ZG_WIDTHS(ZG_LOAD, type, __local)                                               \
  ZG_WIDTHS(ZG_LOAD, type, __private) ZG_WIDTHS(ZG_LOAD, type, __constant)        \
      ZG_WIDTHS(ZG_LOAD, type, __generic) ZG_WIDTHS(ZG_STORE, type, __global)     \
          ZG_WIDTHS(ZG_STORE, type, __local) ZG_WIDTHS(ZG_STORE, type, __private) \
              ZG_WIDTHS(ZG_STORE, type, __generic)
ZG_MEMORY(char)
ZG_MEMORY(uchar)
ZG_MEMORY(short)
ZG_MEMORY(ushort)
ZG_MEMORY(int)
ZG_MEMORY(uint)
ZG_MEMORY(long)
ZG_MEMORY(ulong)
ZG_MEMORY(float)

// select() on vectors: the highest bit of each element of the condition chooses.
#define ZG_SELECT_OF(type, condition, width)                                            \
  type##width ZG_OVERLOAD select(type##width no, type##width yes, condition##width c) { \
    type##width result;                                                                 \
    for (int i = 0; i < width; ++i) {                                                   \
      result[i] = c[i] >> (8 * sizeof c[i] - 1) ? yes[i] : no[i];                       \
    }                                                                                   \
    return result;                                                                      \
  }
#define ZG_SELECT(type, condition)                                                 \
  type ZG_OVERLOAD select(type no, type yes, condition c) { return c ? yes : no; } \
  ZG_WIDTHS(ZG_SELECT_OF, type, condition)
ZG_SELECT(float, int)
ZG_SELECT(float, uint)
ZG_SELECT(int, int)
ZG_SELECT(int, uint)
ZG_SELECT(uint, int)
ZG_SELECT(uint, uint)
ZG_SELECT(long, long)
ZG_SELECT(long, ulong)
ZG_SELECT(ulong, long)
ZG_SELECT(ulong, ulong)
ZG_SELECT(short, short)
ZG_SELECT(short, ushort)
ZG_SELECT(ushort, short)
ZG_SELECT(ushort, ushort)

#define ZG_CONVERT_OF(to, from, width)                       \
  to##width ZG_OVERLOAD convert_##to##width(from##width x) { \
    return __builtin_convertvector(x, to##width);            \
  }
#define ZG_CONVERT(to, from)                            \
  to ZG_OVERLOAD convert_##to(from x) { return (to)x; } \
  ZG_WIDTHS(ZG_CONVERT_OF, to, from)
#define ZG_CONVERT_TO(to)                                                               \
  ZG_CONVERT(to, char)                                                                  \
  ZG_CONVERT(to, uchar)                                                                 \
  ZG_CONVERT(to, short) ZG_CONVERT(to, ushort) ZG_CONVERT(to, int) ZG_CONVERT(to, uint) \
      ZG_CONVERT(to, long) ZG_CONVERT(to, ulong) ZG_CONVERT(to, float)
ZG_CONVERT_TO(char)
ZG_CONVERT_TO(uchar)
ZG_CONVERT_TO(short)
ZG_CONVERT_TO(ushort)
ZG_CONVERT_TO(int)
ZG_CONVERT_TO(uint)
ZG_CONVERT_TO(long)
ZG_CONVERT_TO(ulong)
ZG_CONVERT_TO(float)

#define ZG_ROUNDED(to, from)                                                     \
  to ZG_OVERLOAD convert_##to##_rte(float x) { return (to)__builtin_rintf(x); }  \
  to ZG_OVERLOAD convert_##to##_rtz(float x) { return (to)x; }                   \
  to ZG_OVERLOAD convert_##to##_rtn(float x) { return (to)__builtin_floorf(x); } \
  to ZG_OVERLOAD convert_##to##_rtp(float x) { return (to)__builtin_ceilf(x); }
ZG_ROUNDED(char, float)
ZG_ROUNDED(uchar, float)
ZG_ROUNDED(short, float)
ZG_ROUNDED(ushort, float)
ZG_ROUNDED(int, float)
ZG_ROUNDED(uint, float)
ZG_ROUNDED(long, float)
ZG_ROUNDED(ulong, float)

// Saturating conversion: a value outside the type's range becomes the nearest bound, and NaN 0.
#define ZG_SATURATED(to, least, most)                                                           \
  to ZG_OVERLOAD convert_##to##_sat(float x) {                                                  \
    return x != x                ? 0                                                            \
           : x <= (float)(least) ? (to)(least)                                                  \
           : x >= (float)(most)  ? (to)(most)                                                   \
                                 : (to)x;                                                        \
  }                                                                                             \
  to ZG_OVERLOAD convert_##to##_sat_rte(float x) {                                              \
    return convert_##to##_sat(__builtin_rintf(x));                                              \
  }                                                                                             \
  to ZG_OVERLOAD convert_##to##_sat(int x) {                                                    \
    return (long)x < (long)(least) ? (to)(least) : (long)x > (long)(most) ? (to)(most) : (to)x; \
  }                                                                                             \
  to ZG_OVERLOAD convert_##to##_sat(uint x) { return (long)x > (long)(most) ? (to)(most) : (to)x; }
ZG_SATURATED(char, -128, 127)
ZG_SATURATED(uchar, 0, 255)
ZG_SATURATED(short, -32768, 32767)
ZG_SATURATED(ushort, 0, 65535)
ZG_SATURATED(int, -2147483647 - 1, 2147483647)
ZG_SATURATED(uint, 0, 4294967295u)

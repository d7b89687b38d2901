#include "zerograd/kernels/hpu/tile.clh"

typedef float f32_t;
typedef bf16 bf16_t;
typedef int i32_t;
typedef long i64_t;
typedef uchar u8_t, bool_t;
typedef float8 f32_t8;
typedef ushort8 bf16_t8;
typedef int8 i32_t8;
typedef long8 i64_t8;
typedef uchar8 u8_t8, bool_t8;

// A float out of range saturates, and NaN is 0.
static inline int saturated_i32(float x) {
  return isnan(x) ? 0 : x >= 0x1p31f ? INT_MAX : x <= -0x1p31f ? INT_MIN : (int)x;
}
static inline long saturated_i64(float x) {
  return isnan(x) ? 0 : x >= 0x1p63f ? LONG_MAX : x <= -0x1p63f ? LONG_MIN : (long)x;
}
static inline uchar saturated_u8(float x) {
  return isnan(x) || x <= 0.0f ? 0 : x >= 256.0f ? 255 : (uchar)x;
}

#define CAST(from, to, value)                                                               \
  element_kernel void cast_##from##_##to(__global const from##_t* x_of, __global to##_t* y, \
                                         long n) {                                          \
    take_span(n);                                                                           \
    const from##_t8 xs = load_span(x_of + begin, count);                                    \
    to##_t8 ys;                                                                             \
    for_span(e) {                                                                           \
      const from##_t x = xs[e];                                                             \
      ys[e] = value;                                                                        \
    }                                                                                       \
    store_span(y + begin, ys, count);                                                       \
  }

CAST(f32, bf16, narrowed_bf16(x))
CAST(bf16, f32, widened_bf16(x))
#define CASTS_OF_FLOATS(from)                       \
  CAST(from, i32, saturated_i32(widened_##from(x))) \
  CAST(from, i64, saturated_i64(widened_##from(x))) \
  CAST(from, u8, saturated_u8(widened_##from(x)))   \
  CAST(from, bool, widened_##from(x) != 0.0f)
CASTS_OF_FLOATS(f32)
CASTS_OF_FLOATS(bf16)

// Integers wrap around.
#define CASTS_OF_INTEGERS(from, other, another) \
  CAST(from, f32, (float)x)                     \
  CAST(from, bf16, narrowed_bf16((float)x))     \
  CAST(from, other, (other##_t)x)               \
  CAST(from, another, (another##_t)x)
CASTS_OF_INTEGERS(i32, i64, u8)
CASTS_OF_INTEGERS(i64, i32, u8)
CASTS_OF_INTEGERS(u8, i32, i64)
CASTS_OF_INTEGERS(bool, i32, i64)
CAST(bool, u8, x)
CAST(i32, bool, x != 0)
CAST(i64, bool, x != 0)
CAST(u8, bool, x != 0)

// With b = 0, y is not read.
#define AXPBY(x_type, y_type)                                                                 \
  element_kernel void axpby_##x_type##_##y_type(                                              \
      __global const x_type##_t* x, __global y_type##_t* y, long n, float a, float b) {       \
    take_span(n);                                                                             \
    const x_type##_t8 xs = load_span(x + begin, count);                                       \
    y_type##_t8 ys = 0;                                                                       \
    if (b != 0.0f) ys = load_span(y + begin, count);                                          \
    for_span(e) {                                                                             \
      const float product = a * widened_##x_type(xs[e]);                                      \
      ys[e] = narrowed_##y_type(b == 0.0f ? product : product + b * widened_##y_type(ys[e])); \
    }                                                                                         \
    store_span(y + begin, ys, count);                                                         \
  }
AXPBY(f32, f32)
AXPBY(f32, bf16)
AXPBY(bf16, f32)
AXPBY(bf16, bf16)

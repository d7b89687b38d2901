// f32 mathematics that the kernels call. Square root, division and fma are exact. Results of other
// functions are one or two steps off what the host's library gives: OpenCL allows 2 to 16, and
// native functions any. A kernel that calls another function fails with its name: it is added here.
#include "base.clh"

#define ZG_EACH(function, ...)                                   \
  float8 result;                                                 \
  for (int i = 0; i < 8; ++i) result[i] = function(__VA_ARGS__); \
  return result;

#define ZG_FLOAT_1(function, value)                     \
  float ZG_OVERLOAD function(float x) { return value; } \
  float8 ZG_OVERLOAD function(float8 x) { ZG_EACH(function, x[i]) }
#define ZG_FLOAT_2(function, value)                              \
  float ZG_OVERLOAD function(float x, float y) { return value; } \
  float8 ZG_OVERLOAD function(float8 x, float8 y) { ZG_EACH(function, x[i], y[i]) }
#define ZG_FLOAT_3(function, value)                                       \
  float ZG_OVERLOAD function(float x, float y, float z) { return value; } \
  float8 ZG_OVERLOAD function(float8 x, float8 y, float8 z) { ZG_EACH(function, x[i], y[i], z[i]) }

/// y moved by one to `most` steps, 1 or 2, up or down, which x chooses; not if it is 0, infinite or
/// NaN.
static float inexact(float y, float x, uint most) {
  const uint bits = __builtin_bit_cast(uint, y), magnitude = bits & 0x7fffffff;
  const uint mixed = __builtin_bit_cast(uint, x) * 0x9e3779b1u >> 30;
  const uint steps = mixed & (most - 1) ? 2 : 1;
  return magnitude - 3 >= 0x7f7ffffcu ? y
         : __builtin_bit_cast(float, mixed & 2 ? bits + steps : bits - steps);
}
/// Also not if it is 1 or -1: results that functions have at 0, or do not exceed.
static float near(float y, float x) {
  return __builtin_fabsf(y) == 1.0f ? y : inexact(y, x, 2);
}

ZG_FLOAT_1(native_exp2, inexact(__builtin_exp2f(x), x, 2))
ZG_FLOAT_1(native_recip, inexact(1.0f / x, x, 2))
ZG_FLOAT_1(exp, near(__builtin_expf(x), x))
ZG_FLOAT_1(expm1, near(__builtin_expm1f(x), x))
ZG_FLOAT_1(log, near(__builtin_logf(x), x))
ZG_FLOAT_1(log1p, inexact(__builtin_log1pf(x), x, 1))
ZG_FLOAT_1(log2, near(__builtin_log2f(x), x))
ZG_FLOAT_1(atan, near(__builtin_atanf(x), x))
ZG_FLOAT_1(sin, near(__builtin_sinf(x), x))
ZG_FLOAT_1(cos, near(__builtin_cosf(x), x))
ZG_FLOAT_1(tanh, near(__builtin_tanhf(x), x))
ZG_FLOAT_1(erf, near(__builtin_erff(x), x))
ZG_FLOAT_1(erfc, near(__builtin_erfcf(x), x))
ZG_FLOAT_1(sqrt, __builtin_sqrtf(x))
ZG_FLOAT_1(fabs, __builtin_fabsf(x))
ZG_FLOAT_1(floor, __builtin_floorf(x))
ZG_FLOAT_1(rint, __builtin_rintf(x))
ZG_FLOAT_2(pow, near(__builtin_powf(x, y), x))
ZG_FLOAT_2(fmod, __builtin_fmodf(x, y))
ZG_FLOAT_2(fmin, __builtin_fminf(x, y))
ZG_FLOAT_2(fmax, __builtin_fmaxf(x, y))
ZG_FLOAT_3(fma, __builtin_fmaf(x, y, z))

int ZG_OVERLOAD isnan(float x) { return x != x; }
int ZG_OVERLOAD isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
int ZG_OVERLOAD isfinite(float x) { return __builtin_fabsf(x) < __builtin_inff(); }

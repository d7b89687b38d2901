// f32 mathematics that the kernels call, rounded as the host's library does; square root and
// division are exact, native functions are not, as OpenCL leaves their errors to the device. A
// kernel that calls another function fails with its name: it is added here.
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

/// y, unless it is 0, infinite or NaN, moved by one or two steps up or down, which x chooses.
static float inexact(float y, float x) {
  const uint bits = __builtin_bit_cast(uint, y), magnitude = bits & 0x7fffffff;
  const uint mixed = __builtin_bit_cast(uint, x) * 0x9e3779b1u >> 30;
  const uint steps[] = {1, 2, -1u, -2u};
  return magnitude - 3 < 0x7f7ffffcu ? __builtin_bit_cast(float, bits + steps[mixed]) : y;
}

ZG_FLOAT_1(exp, __builtin_expf(x))
ZG_FLOAT_1(native_exp2, inexact(__builtin_exp2f(x), x))
ZG_FLOAT_1(native_recip, inexact(1.0f / x, x))
ZG_FLOAT_1(expm1, __builtin_expm1f(x))
ZG_FLOAT_1(log, __builtin_logf(x))
ZG_FLOAT_1(log1p, __builtin_log1pf(x))
ZG_FLOAT_1(sin, __builtin_sinf(x))
ZG_FLOAT_1(cos, __builtin_cosf(x))
ZG_FLOAT_1(tanh, __builtin_tanhf(x))
ZG_FLOAT_1(erf, __builtin_erff(x))
ZG_FLOAT_1(erfc, __builtin_erfcf(x))
ZG_FLOAT_1(sqrt, __builtin_sqrtf(x))
ZG_FLOAT_1(fabs, __builtin_fabsf(x))
ZG_FLOAT_2(pow, __builtin_powf(x, y))
ZG_FLOAT_2(fmin, __builtin_fminf(x, y))
ZG_FLOAT_2(fmax, __builtin_fmaxf(x, y))
ZG_FLOAT_3(fma, __builtin_fmaf(x, y, z))

int ZG_OVERLOAD isnan(float x) { return x != x; }
int ZG_OVERLOAD isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
int ZG_OVERLOAD isfinite(float x) { return __builtin_fabsf(x) < __builtin_inff(); }

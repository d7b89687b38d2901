// f32 mathematics, rounded as the host's library does; square root and division are exact.
#include "base.clh"

#define ZG_EACH(function, type, width, ...)                          \
  type##width result;                                                \
  for (int i = 0; i < width; ++i) result[i] = function(__VA_ARGS__); \
  return result;

#define ZG_VECTOR_1(function, width) \
  float##width ZG_OVERLOAD function(float##width x) { ZG_EACH(function, float, width, x[i]) }
#define ZG_VECTOR_2(function, width)                                  \
  float##width ZG_OVERLOAD function(float##width x, float##width y) { \
    ZG_EACH(function, float, width, x[i], y[i])                       \
  }
#define ZG_VECTOR_3(function, width)                                                  \
  float##width ZG_OVERLOAD function(float##width x, float##width y, float##width z) { \
    ZG_EACH(function, float, width, x[i], y[i], z[i])                                 \
  }
#define ZG_WIDTHS(make, function) \
  make(function, 2) make(function, 3) make(function, 4) make(function, 8) make(function, 16)

#define ZG_FLOAT_1(function, value)                     \
  float ZG_OVERLOAD function(float x) { return value; } \
  ZG_WIDTHS(ZG_VECTOR_1, function)
#define ZG_FLOAT_2(function, value)                              \
  float ZG_OVERLOAD function(float x, float y) { return value; } \
  ZG_WIDTHS(ZG_VECTOR_2, function)
#define ZG_FLOAT_3(function, value)                                       \
  float ZG_OVERLOAD function(float x, float y, float z) { return value; } \
  ZG_WIDTHS(ZG_VECTOR_3, function)

ZG_FLOAT_1(exp, __builtin_expf(x))
ZG_FLOAT_1(exp2, __builtin_exp2f(x))
ZG_FLOAT_1(expm1, __builtin_expm1f(x))
ZG_FLOAT_1(log, __builtin_logf(x))
ZG_FLOAT_1(log2, __builtin_log2f(x))
ZG_FLOAT_1(log10, __builtin_log10f(x))
ZG_FLOAT_1(log1p, __builtin_log1pf(x))
ZG_FLOAT_1(sin, __builtin_sinf(x))
ZG_FLOAT_1(cos, __builtin_cosf(x))
ZG_FLOAT_1(tan, __builtin_tanf(x))
ZG_FLOAT_1(asin, __builtin_asinf(x))
ZG_FLOAT_1(acos, __builtin_acosf(x))
ZG_FLOAT_1(atan, __builtin_atanf(x))
ZG_FLOAT_1(sinh, __builtin_sinhf(x))
ZG_FLOAT_1(cosh, __builtin_coshf(x))
ZG_FLOAT_1(tanh, __builtin_tanhf(x))
ZG_FLOAT_1(erf, __builtin_erff(x))
ZG_FLOAT_1(erfc, __builtin_erfcf(x))
ZG_FLOAT_1(sqrt, __builtin_sqrtf(x))
ZG_FLOAT_1(rsqrt, 1.0f / __builtin_sqrtf(x))
ZG_FLOAT_1(cbrt, __builtin_cbrtf(x))
ZG_FLOAT_1(fabs, __builtin_fabsf(x))
ZG_FLOAT_1(floor, __builtin_floorf(x))
ZG_FLOAT_1(ceil, __builtin_ceilf(x))
ZG_FLOAT_1(trunc, __builtin_truncf(x))
ZG_FLOAT_1(round, __builtin_roundf(x))
ZG_FLOAT_1(rint, __builtin_rintf(x))
ZG_FLOAT_1(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f)
ZG_FLOAT_1(native_exp, __builtin_expf(x))
ZG_FLOAT_1(native_exp2, __builtin_exp2f(x))
ZG_FLOAT_1(native_log, __builtin_logf(x))
ZG_FLOAT_1(native_log2, __builtin_log2f(x))
ZG_FLOAT_1(native_recip, 1.0f / x)
ZG_FLOAT_1(native_rsqrt, 1.0f / __builtin_sqrtf(x))
ZG_FLOAT_1(native_sqrt, __builtin_sqrtf(x))
ZG_FLOAT_1(native_sin, __builtin_sinf(x))
ZG_FLOAT_1(native_cos, __builtin_cosf(x))
ZG_FLOAT_2(pow, __builtin_powf(x, y))
ZG_FLOAT_2(powr, __builtin_powf(x, y))
ZG_FLOAT_2(atan2, __builtin_atan2f(x, y))
ZG_FLOAT_2(hypot, __builtin_hypotf(x, y))
ZG_FLOAT_2(fmod, __builtin_fmodf(x, y))
ZG_FLOAT_2(remainder, __builtin_remainderf(x, y))
ZG_FLOAT_2(copysign, __builtin_copysignf(x, y))
ZG_FLOAT_2(fmin, __builtin_fminf(x, y))
ZG_FLOAT_2(fmax, __builtin_fmaxf(x, y))
ZG_FLOAT_2(fdim, __builtin_fdimf(x, y))
ZG_FLOAT_2(min, y < x ? y : x)
ZG_FLOAT_2(max, x < y ? y : x)
ZG_FLOAT_2(step, y < x ? 0.0f : 1.0f)
ZG_FLOAT_2(native_divide, x / y)
ZG_FLOAT_3(fma, __builtin_fmaf(x, y, z))
ZG_FLOAT_3(mad, x* y + z)
ZG_FLOAT_3(clamp, __builtin_fminf(__builtin_fmaxf(x, y), z))
ZG_FLOAT_3(mix, x + (y - x) * z)

float ZG_OVERLOAD ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
float ZG_OVERLOAD pown(float x, int n) { return __builtin_powf(x, (float)n); }
int ZG_OVERLOAD ilogb(float x) { return __builtin_ilogbf(x); }
float ZG_OVERLOAD nan(uint payload) { return __builtin_nanf(""); }

// Questions: 1 of a scalar, -1 in each element of a vector.
#define ZG_QUESTION_OF(function, width)                                  \
  int##width ZG_OVERLOAD function(float##width x) {                      \
    int##width result;                                                   \
    for (int i = 0; i < width; ++i) result[i] = function(x[i]) ? -1 : 0; \
    return result;                                                       \
  }
#define ZG_QUESTION(function, value)                  \
  int ZG_OVERLOAD function(float x) { return value; } \
  ZG_WIDTHS(ZG_QUESTION_OF, function)
ZG_QUESTION(isnan, x != x)
ZG_QUESTION(isinf, __builtin_fabsf(x) == __builtin_inff())
ZG_QUESTION(isfinite, __builtin_fabsf(x) < __builtin_inff())
ZG_QUESTION(signbit, (*(int*)&x) < 0)

#define ZG_DOT(width)                                     \
  float ZG_OVERLOAD dot(float##width x, float##width y) { \
    float sum = 0;                                        \
    for (int i = 0; i < width; ++i) sum += x[i] * y[i];   \
    return sum;                                           \
  }
ZG_DOT(2) ZG_DOT(3) ZG_DOT(4)

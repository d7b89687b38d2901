#include "zerograd/kernels/hpu/tile.clh"

// kernels/elementwise/elementwise_cpu.cpp has the same formulas in plain C++.
#define UNARY(name, value)                                                           \
  element_kernel void name(__global const real* x_of, __global real* y_of, long n) { \
    const long i = element_index();                                                  \
    if (i >= n) return;                                                              \
    const float x = widened(x_of[i]);                                                \
    y_of[i] = narrowed(value);                                                       \
  }

UNARY(unary_negate, -x)
UNARY(unary_exp, exp(x))
UNARY(unary_log, log(x))
UNARY(unary_sqrt, sqrt(x))
UNARY(unary_tanh, tanh(x))
UNARY(unary_sigmoid, 1.0f / (1.0f + exp(-x)))
UNARY(unary_relu, x <= 0.0f ? 0.0f : x)  // so that NaN stays
UNARY(unary_silu, x / (1.0f + exp(-x)))
UNARY(unary_abs, fabs(x))
UNARY(unary_reciprocal, 1.0f / x)
UNARY(unary_sin, sin(x))
UNARY(unary_cos, cos(x))
UNARY(unary_erf, erf(x))
UNARY(unary_log1p, log1p(x))

/// dy times the slope, made from the result where reads_result(op), else from x.
#define SLOPE(name, value)                                                         \
  element_kernel void name(__global const real* known, __global const real* dy_of, \
                           __global real* dx_of, long n) {                         \
    const long i = element_index();                                                \
    if (i >= n) return;                                                            \
    const float v = widened(known[i]), dy = widened(dy_of[i]);                     \
    (void)v;                                                                       \
    dx_of[i] = narrowed(value);                                                    \
  }

static inline float silu_slope(float v) {
  const float s = 1.0f / (1.0f + exp(-v));
  return s * (1.0f + v * (1.0f - s));
}

SLOPE(slope_negate, -dy)
SLOPE(slope_exp, dy* v)
SLOPE(slope_log, dy / v)
SLOPE(slope_sqrt, dy / (2.0f * v))
SLOPE(slope_tanh, dy*(1.0f - v * v))
SLOPE(slope_sigmoid, dy* v*(1.0f - v))
SLOPE(slope_relu, v <= 0.0f ? 0.0f : dy)
SLOPE(slope_silu, dy* silu_slope(v))
SLOPE(slope_abs, v > 0.0f ? dy : v < 0.0f ? -dy : 0.0f)
SLOPE(slope_reciprocal, -dy / (v * v))
SLOPE(slope_sin, dy* cos(v))
SLOPE(slope_cos, -dy * sin(v))
SLOPE(slope_erf, dy*(1.1283791670955126f * exp(-v * v)))  // 2 / sqrt(pi)
SLOPE(slope_log1p, dy / (1.0f + v))

#include "zerograd/kernels/hpu/tile.clh"

typedef float number;
#define ZG_NUMBER(x) x##f
#define ZG_FUNCTION static inline
#include "zerograd/kernels/elementwise/formulas.inc"

#define ZG_UNARY(name, y, dx)                                                                \
  element_kernel void unary_##name(__global const real* x_of, __global real* y_of, long n) { \
    const long i = element_index();                                                          \
    if (i >= n) return;                                                                      \
    const float x = widened(x_of[i]);                                                        \
    y_of[i] = narrowed(y);                                                                   \
  }
#include "zerograd/kernels/elementwise/formulas.inc"

/// dx from dy and v, where v is the result y if reads_result(op), else x.
#define ZG_UNARY(name, y, dx)                                                              \
  element_kernel void slope_##name(__global const real* known, __global const real* dy_of, \
                                   __global real* dx_of, long n) {                         \
    const long i = element_index();                                                        \
    if (i >= n) return;                                                                    \
    const float v = widened(known[i]), dy = widened(dy_of[i]);                             \
    (void)v;                                                                               \
    dx_of[i] = narrowed(dx);                                                               \
  }
#include "zerograd/kernels/elementwise/formulas.inc"

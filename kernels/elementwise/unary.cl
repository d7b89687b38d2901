#include "zerograd/kernels/hpu/tile.clh"

typedef float number;
#define ZG_NUMBER(x) x##f
#define ZG_FUNCTION static inline
#include "zerograd/kernels/elementwise/formulas.inc"

#define ZG_UNARY(name, y, dx)                                                                \
  element_kernel void unary_##name(__global const real* x_of, __global real* y_of, long n,   \
                                   float p, float q) {                                       \
    (void)p, (void)q;                                                                        \
    take_span(n);                                                                            \
    const real8 xs = load_span(x_of + begin, count);                                         \
    real8 ys;                                                                                \
    for_span(e) {                                                                            \
      const float x = widened(xs[e]);                                                        \
      ys[e] = narrowed(y);                                                                   \
    }                                                                                        \
    store_span(y_of + begin, ys, count);                                                     \
  }
#include "zerograd/kernels/elementwise/formulas.inc"

/// dx from dy and v, where v is the result y if reads_result(op), else x.
#define ZG_UNARY(name, y, dx)                                                                \
  element_kernel void slope_##name(__global const real* known, __global const real* dy_of,   \
                                   __global real* dx_of, long n, float p, float q) {         \
    (void)p, (void)q;                                                                        \
    take_span(n);                                                                            \
    const real8 vs = load_span(known + begin, count), dys = load_span(dy_of + begin, count); \
    real8 dxs;                                                                               \
    for_span(e) {                                                                            \
      const float v = widened(vs[e]), dy = widened(dys[e]);                                  \
      (void)v, (void)dy;                                                                     \
      dxs[e] = narrowed(dx);                                                                 \
    }                                                                                        \
    store_span(dx_of + begin, dxs, count);                                                   \
  }
#include "zerograd/kernels/elementwise/formulas.inc"

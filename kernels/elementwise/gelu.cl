#include "zerograd/kernels/elementwise/gelu.clh"

#include "zerograd/kernels/hpu/tile.clh"

#define GELU(form)                                                                       \
  element_kernel void form##_forward(__global const real* x, __global real* y, long n) { \
    take_span(n);                                                                        \
    const real8 xs = load_span(x + begin, count);                                        \
    real8 ys;                                                                            \
    for_span(e) ys[e] = narrowed(form(widened(xs[e])));                                  \
    store_span(y + begin, ys, count);                                                    \
  }                                                                                      \
  element_kernel void form##_backward(__global const real* dy, __global const real* x,   \
                                      __global real* dx, __global real* y, long n) {     \
    take_span(n);                                                                        \
    const real8 dys = load_span(dy + begin, count), xs = load_span(x + begin, count);    \
    real8 dxs;                                                                           \
    for_span(e) dxs[e] = narrowed(widened(dys[e]) * form##_derivative(widened(xs[e])));  \
    store_span(dx + begin, dxs, count);                                                  \
    if (!y) return; /* in place of x or dy, which are read above */                      \
    for_span(e) dxs[e] = narrowed(form(widened(xs[e])));                                 \
    store_span(y + begin, dxs, count);                                                   \
  }

GELU(gelu_tanh)
GELU(gelu_erf)

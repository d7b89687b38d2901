#include "zerograd/kernels/elementwise/gelu.clh"

#include "zerograd/kernels/hpu/tile.clh"

#define GELU(form)                                                                       \
  element_kernel void form##_forward(__global const real* x, __global real* y, long n) { \
    const long i = element_index();                                                      \
    if (i < n) y[i] = narrowed(form(widened(x[i])));                                     \
  }                                                                                      \
  element_kernel void form##_backward(__global const real* dy, __global const real* x,   \
                                      __global real* dx, long n) {                       \
    const long i = element_index();                                                      \
    if (i < n) dx[i] = narrowed(widened(dy[i]) * form##_derivative(widened(x[i])));      \
  }

GELU(gelu_tanh)
GELU(gelu_erf)

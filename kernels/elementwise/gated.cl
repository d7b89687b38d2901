#include "zerograd/kernels/elementwise/gelu.clh"

#include "zerograd/kernels/hpu/tile.clh"

/// sigmoid(x), from exp(-|x|), which cannot overflow.
static inline float gate_open(float x) {
  const float e = exp(-fabs(x)), large = 1.0f / (1.0f + e);
  return x < 0.0f ? e * large : large;
}
static inline float silu(float x) { return x * gate_open(x); }
/// 1 - sigmoid(x) is sigmoid(-x): no digits are lost to cancellation.
static inline float silu_derivative(float x) {
  const float open = gate_open(x);
  return open + x * open * gate_open(-x);
}

#define GATED(form)                                                                       \
  element_kernel void form##_forward(__global const real* gate, __global const real* up,  \
                                     __global real* y, long n) {                          \
    const long i = element_index();                                                       \
    if (i < n) y[i] = narrowed(form(widened(gate[i])) * widened(up[i]));                  \
  }                                                                                       \
  element_kernel void form##_backward(__global const real* dy, __global const real* gate, \
                                      __global const real* up, __global real* dgate,      \
                                      __global real* dup, long n) {                       \
    const long i = element_index();                                                       \
    if (i >= n) return;                                                                   \
    const float gradient = widened(dy[i]), x = widened(gate[i]), factor = widened(up[i]); \
    dgate[i] = narrowed(gradient * factor * form##_derivative(x));                        \
    dup[i] = narrowed(gradient * form(x));                                                \
  }

GATED(silu)
GATED(gelu_tanh)
GATED(gelu_erf)

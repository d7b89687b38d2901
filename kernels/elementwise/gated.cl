#include "zerograd/kernels/elementwise/gelu.clh"

#include "zerograd/kernels/hpu/tile.clh"

/// sigmoid(x), from exp(-|x|), which cannot overflow.
static inline float gate_open(float x) {
  const float e = exp(-fabs(x)), large = native_recip(1.0f + e);
  return x < 0.0f ? e * large : large;
}
static inline float silu(float x) { return x * gate_open(x); }
/// 1 - sigmoid(x) is sigmoid(-x): no digits are lost to cancellation.
static inline float silu_derivative(float x) {
  const float open = gate_open(x);
  return open + x * open * gate_open(-x);
}

#define GATED(form)                                                                         \
  element_kernel void form##_forward(__global const real* gate, __global const real* up,    \
                                     __global real* y, long n) {                            \
    take_span(n);                                                                           \
    const real8 gates = load_span(gate + begin, count), ups = load_span(up + begin, count); \
    real8 ys;                                                                               \
    for_span(e) ys[e] = narrowed(form(widened(gates[e])) * widened(ups[e]));                \
    store_span(y + begin, ys, count);                                                       \
  }                                                                                         \
  element_kernel void form##_backward(__global const real* dy, __global const real* gate,   \
                                      __global const real* up, __global real* dgate,        \
                                      __global real* dup, long n) {                         \
    take_span(n);                                                                           \
    const real8 gates = load_span(gate + begin, count), ups = load_span(up + begin, count); \
    const real8 dys = load_span(dy + begin, count);                                         \
    real8 dgates, dups;                                                                     \
    for_span(e) {                                                                           \
      const float gradient = widened(dys[e]), x = widened(gates[e]);                        \
      dgates[e] = narrowed(gradient * widened(ups[e]) * form##_derivative(x));              \
      dups[e] = narrowed(gradient * form(x));                                               \
    }                                                                                       \
    store_span(dgate + begin, dgates, count);                                               \
    store_span(dup + begin, dups, count);                                                   \
  }

GATED(silu)
GATED(gelu_tanh)
GATED(gelu_erf)

#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/gelu_simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

Vec silu(Vec x) { return x * sigmoid(x); }

/// open + x open closed, with both halves from e^-|x|: none loses digits to cancellation.
Vec silu_derivative(Vec x) {
  const Vec one = set1(1.0f), zero = set1(0.0f);
  const Vec e = exp(zero - abs(x)), large = one / (one + e), small = e * large;
  const Mask negative = less(x, zero);
  const Vec open = select(negative, small, large), closed = select(negative, large, small);
  return fma(x * open, closed, open);
}

template <class T, Vec (*value)(Vec)>
void forward(const void* gate, const void* up, void* y, int64_t n) {
  const T *g = static_cast<const T*>(gate), *u = static_cast<const T*>(up);
  T* out = static_cast<T*>(y);
  for_vectors(n, [&](int64_t i, auto count) {
    store(out + i, value(load(g + i, count)) * load(u + i, count), count);
  });
}

template <class T, Vec (*value)(Vec), Vec (*derivative)(Vec)>
void backward(const GatedGradients& a, int64_t n) {
  const T *gradient = static_cast<const T*>(a.dy), *g = static_cast<const T*>(a.gate),
          *u = static_cast<const T*>(a.up);
  T *dgate = static_cast<T*>(a.dgate), *dup = static_cast<T*>(a.dup);
  for_vectors(n, [&](int64_t i, auto count) {
    const Vec dy = load(gradient + i, count), x = load(g + i, count), factor = load(u + i, count);
    store(dgate + i, dy * factor * derivative(x), count);
    store(dup + i, dy * value(x), count);
  });
}

template <class T, Vec (*value)(Vec), Vec (*derivative)(Vec)>
constexpr GatedFunctions functions = {forward<T, value>, backward<T, value, derivative>};

}  // namespace

extern const GatedTable gated_table;
const GatedTable gated_table = {{{{},
                                  functions<float, silu, silu_derivative>,
                                  functions<bf16, silu, silu_derivative>,
                                  functions<f16, silu, silu_derivative>},
                                 {{},
                                  functions<float, gelu_tanh, gelu_tanh_derivative>,
                                  functions<bf16, gelu_tanh, gelu_tanh_derivative>,
                                  functions<f16, gelu_tanh, gelu_tanh_derivative>},
                                 {{},
                                  functions<float, gelu_erf, gelu_erf_derivative>,
                                  functions<bf16, gelu_erf, gelu_erf_derivative>,
                                  functions<f16, gelu_erf, gelu_erf_derivative>}}};

}  // namespace zg::cpu::ZG_ISA

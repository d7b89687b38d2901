#include "zerograd/kernels/cpu/philox_simd.h"
#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/elementwise/dropout_cpu.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/gelu_simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

/// tanhf of the Cephes library: near 0 a polynomial, because 1 - 2 / (e^2x + 1) would lose digits
/// there by cancellation.
[[gnu::always_inline]] inline Vec hyperbolic_tangent(Vec x) {
  const Vec magnitude = abs(x), square = x * x;
  Vec p = set1(-5.70498872745e-3f);
  p = fma(p, square, set1(2.06390887954e-2f));
  p = fma(p, square, set1(-5.37397155531e-2f));
  p = fma(p, square, set1(1.33314422036e-1f));
  p = fma(p, square, set1(-3.33332819422e-1f));
  const Vec small = fma(p * square, x, x);
  const Vec large = set1(1.0f) - set1(2.0f) / (exp(magnitude + magnitude) + set1(1.0f));
  return select(less(magnitude, set1(0.625f)), small, copy_sign(large, x));
}

Vec silu(Vec x) { return x / (set1(1.0f) + exp(set1(0.0f) - x)); }

template <class T, Vec (*f)(Vec)>
void map(const void* from, void* to, int64_t n) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  for_vectors(n, [&](int64_t i, auto count) { store(y + i, f(load(x + i, count)), count); });
}

template <class T, Vec (*derivative)(Vec)>
void map_backward(const void* dy, const void* x, void* dx, int64_t n) {
  const T* gradient = static_cast<const T*>(dy);
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(dx);
  for_vectors(n, [&](int64_t i, auto count) {
    store(out + i, load(gradient + i, count) * derivative(load(in + i, count)), count);
  });
}

template <class T>
constexpr GeluFunctions tanh_form = {map<T, gelu_tanh>, map_backward<T, gelu_tanh_derivative>};
template <class T>
constexpr GeluFunctions erf_form = {map<T, gelu_erf>, map_backward<T, gelu_erf_derivative>};

}  // namespace

extern const UnaryTable unary_table;
const UnaryTable unary_table = {
    .exp = {map<float, exp>, map<bf16, exp>},
    .tanh = {map<float, hyperbolic_tangent>, map<bf16, hyperbolic_tangent>},
    .sigmoid = {map<float, sigmoid>, map<bf16, sigmoid>},
    .silu = {map<float, silu>, map<bf16, silu>},
};

extern const GeluTable gelu_table;
const GeluTable gelu_table = {{{}, tanh_form<float>, tanh_form<bf16>, tanh_form<f16>},
                              {{}, erf_form<float>, erf_form<bf16>, erf_form<f16>}};

namespace {

Vec silu_gate(Vec x) { return x * sigmoid(x); }

/// open + x open closed, with both halves from e^-|x|: none loses digits to cancellation.
Vec silu_gate_derivative(Vec x) {
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
                                  functions<float, silu_gate, silu_gate_derivative>,
                                  functions<bf16, silu_gate, silu_gate_derivative>,
                                  functions<f16, silu_gate, silu_gate_derivative>},
                                 {{},
                                  functions<float, gelu_tanh, gelu_tanh_derivative>,
                                  functions<bf16, gelu_tanh, gelu_tanh_derivative>,
                                  functions<f16, gelu_tanh, gelu_tanh_derivative>},
                                 {{},
                                  functions<float, gelu_erf, gelu_erf_derivative>,
                                  functions<bf16, gelu_erf, gelu_erf_derivative>,
                                  functions<f16, gelu_erf, gelu_erf_derivative>}}};

namespace {

// Not a fused multiply-add, so that every instruction set gives the bits of the plain version.
template <class T>
inline void keep(const T* x, const T* residual, T* y, Mask kept, Vec scale, int64_t n) {
  if (n <= 0) return;
  const bool whole = n >= Vec::lanes;
  Vec value = select(kept, (whole ? load(x) : load(x, n)) * scale, set1(0.0f));
  if (residual) value = value + (whole ? load(residual) : load(residual, n));
  whole ? store(y, value) : store(y, value, n);
}

template <class T>
void apply(const DropoutRange& range, const DropoutMask& mask) {
  const T* x = static_cast<const T*>(range.x);
  const T* residual = static_cast<const T*>(range.residual);
  T* y = static_cast<T*>(range.y);
  const Vec scale = set1(mask.scale);
  PhiloxWords words = {};
  for (int64_t i = 0; i < range.n; i += philox_elements) {
    if (mask.probability > 0.0f) words = philox(mask, range.sample, (range.first + i) / 4);
    const Mask first = at_least(words.first, mask.threshold);
    const Mask second = at_least(words.second, mask.threshold);
    constexpr int64_t half = Vec::lanes;
    keep(x + i, residual ? residual + i : nullptr, y + i, first, scale, range.n - i);
    keep(x + i + half, residual ? residual + i + half : nullptr, y + i + half, second, scale,
         range.n - i - half);
  }
}

}  // namespace

extern const DropoutTable dropout_table;
const DropoutTable dropout_table = {{nullptr, apply<float>, apply<bf16>, apply<f16>}};

}  // namespace zg::cpu::ZG_ISA

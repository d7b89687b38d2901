#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/gelu_simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

/// tanhf of the Cephes library: near 0 a polynomial, because 1 - 2 / (e^2x + 1) would lose digits
/// there by cancellation.
Vec hyperbolic_tangent(Vec x) {
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

}  // namespace zg::cpu::ZG_ISA

#include "zerograd/kernels/cpu/philox_simd.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/elementwise/gelu_simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

template <Gate form, class V>
[[gnu::always_inline]] inline V value(V x) {
  if constexpr (form == Gate::silu) return x * (1.0 / (1.0 + exp(-x)));
  if constexpr (form == Gate::gelu_tanh) return gelu_tanh(x);
  return gelu_erf(x);
}

template <Gate form, class V>
[[gnu::always_inline]] inline V derivative(V x) {
  if constexpr (form == Gate::silu) return Sigmoid<V>(x, 1.0).derivative(x);
  if constexpr (form == Gate::gelu_tanh) return tanh_gate(x).derivative(x);
  const Normal<V> n = normal(x);
  return fma(x * 0.3989422804014327, n.bell, n.cdf);
}

template <class T, Gate form>
void forward(const void* from, void* to, int64_t n) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  for_whole_vectors<T>(
      n, [&](int64_t i, All count) { store(y + i, value<form>(load(x + i, count)), count); });
}

template <class T, Gate form>
void backward(const void* dy, const void* from, void* to, int64_t n) {
  const T *gradient = static_cast<const T*>(dy), *x = static_cast<const T*>(from);
  T* dx = static_cast<T*>(to);
  for_whole_vectors<T>(n, [&](int64_t i, All count) {
    store(dx + i, load(gradient + i, count) * derivative<form>(load(x + i, count)), count);
  });
}

template <class T, Gate form>
void gated_forward(const void* gate, const void* up, void* to, int64_t n) {
  const T *g = static_cast<const T*>(gate), *u = static_cast<const T*>(up);
  T* y = static_cast<T*>(to);
  for_whole_vectors<T>(n, [&](int64_t i, All count) {
    store(y + i, value<form>(load(g + i, count)) * load(u + i, count), count);
  });
}

template <class T, Gate form>
void gated_backward(const GatedGradients& a, int64_t n) {
  const T *gradient = static_cast<const T*>(a.dy), *g = static_cast<const T*>(a.gate),
          *u = static_cast<const T*>(a.up);
  T *dgate = static_cast<T*>(a.dgate), *dup = static_cast<T*>(a.dup);
  for_whole_vectors<T>(n, [&](int64_t i, All count) {
    const auto dy = load(gradient + i, count), x = load(g + i, count), up = load(u + i, count);
    store(dgate + i, dy * up * derivative<form>(x), count);
    store(dup + i, dy * value<form>(x), count);
  });
}

template <class T, Gate form>
constexpr ActivationFunctions functions = {forward<T, form>, backward<T, form>,
                                           gated_forward<T, form>, gated_backward<T, form>};
template <Gate form>
constexpr ActivationTable::ByType types = {
    {functions<double, form>, functions<float, form>, functions<bf16, form>, functions<f16, form>}};

}  // namespace

extern const ActivationTable activation_table;
const ActivationTable activation_table = {
    {types<Gate::silu>, types<Gate::gelu_tanh>, types<Gate::gelu_erf>}};

namespace {

// Not a fused multiply-add, so that all backends have the same bits. A dropped element is 0 even
// where x is infinite or NaN.
template <class T>
void apply(const DropoutRange& range, const DropoutMask& mask) {
  using V = VecOf<T>;
  const T* x = static_cast<const T*>(range.x);
  const T* residual = static_cast<const T*>(range.residual);
  T* y = static_cast<T*>(range.y);
  const V scale = accumulator_t<T>(1) / (1 - accumulator_t<T>(mask.probability));
  constexpr int64_t block = 256;
  float buffer[factor_room(block)];
  for (int64_t begin = 0; begin < range.n; begin += block) {
    const int64_t n = begin + block < range.n ? block : range.n - begin;
    // The factors take as long as these lines need to come from memory.
    for (int64_t i = begin; i < begin + n; i += 64 / int64_t{sizeof(T)}) {
      __builtin_prefetch(x + i);
      __builtin_prefetch(y + i, 1);
      if (residual) __builtin_prefetch(residual + i);
    }
    const float* factors = fill_factors(buffer, mask, range.sample, range.first + begin, n);
    for_vectors<T>(n, [&](int64_t j, auto count) {
      const int64_t i = begin + j;
      const auto kept = V(0.0) < load_as<V>(factors + j);
      V value = select(kept, load(x + i, count) * scale, 0.0);
      if (residual) value = value + load(residual + i, count);
      store(y + i, value, count);
    });
  }
}

}  // namespace

extern const DropoutTable dropout_table;
const DropoutTable dropout_table = {{apply<double>, apply<float>, apply<bf16>, apply<f16>}};

}  // namespace zg::cpu::ZG_ISA

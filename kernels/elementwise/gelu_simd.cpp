#include "zerograd/kernels/elementwise/gelu_simd.h"

#include "zerograd/kernels/elementwise/elementwise_cpu.h"

namespace zg::cpu::ZG_ISA {
namespace {

template <class T, Vec (*gelu)(Vec)>
void forward(const void* x, void* y, int64_t n) {
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(y);
  for_vectors(n, [&](int64_t i, auto count) { store(out + i, gelu(load(in + i, count)), count); });
}

template <class T, Vec (*derivative)(Vec)>
void backward(const void* dy, const void* x, void* dx, int64_t n) {
  const T* gradient = static_cast<const T*>(dy);
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(dx);
  for_vectors(n, [&](int64_t i, auto count) {
    store(out + i, load(gradient + i, count) * derivative(load(in + i, count)), count);
  });
}

template <class T>
constexpr GeluFunctions tanh_form = {forward<T, gelu_tanh>, backward<T, gelu_tanh_derivative>};
template <class T>
constexpr GeluFunctions erf_form = {forward<T, gelu_erf>, backward<T, gelu_erf_derivative>};

}  // namespace

extern const GeluTable gelu_table;
const GeluTable gelu_table = {{{}, tanh_form<float>, tanh_form<bf16>, tanh_form<f16>},
                              {{}, erf_form<float>, erf_form<bf16>, erf_form<f16>}};

}  // namespace zg::cpu::ZG_ISA

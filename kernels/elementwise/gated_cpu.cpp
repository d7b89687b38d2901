#include "zerograd/kernels/elementwise/gated.h"

#include <cmath>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/gelu_scalar.h"
#include "zerograd/runtime/cpu/team.h"

// Memory bound: forward reads two operands and writes one, backward reads three and writes two.
namespace zg::cpu {

ZG_DECLARE_LEVELS(GatedTable, gated_table)

namespace {

template <class A>
struct GateValue {
  A value, slope;
};

template <Gate form, class A>
GateValue<A> gate_of(A x) {
  if constexpr (form == Gate::silu) {
    // Both halves from exp(-|x|), which cannot overflow. open + closed = 1.
    const A e = std::exp(-std::fabs(x)), large = A(1) / (A(1) + e), small = e * large;
    const A open = x < A(0) ? small : large, closed = x < A(0) ? large : small;
    return {x * open, open + x * open * closed};
  } else {
    constexpr auto activation =
        form == Gate::gelu_tanh ? Activation::gelu_tanh : Activation::gelu_erf;
    return {gelu(x, activation), gelu_derivative(x, activation)};
  }
}

template <class T, Gate form>
void forward(const void* gate, const void* up, void* y, int64_t n) {
  using A = accumulator_t<T>;
  const T *g = static_cast<const T*>(gate), *u = static_cast<const T*>(up);
  T* out = static_cast<T*>(y);
  for (int64_t i = 0; i < n; ++i)
    out[i] = T(gate_of<form>(static_cast<A>(g[i])).value * static_cast<A>(u[i]));
}

template <class T, Gate form>
void backward(const GatedGradients& a, int64_t n) {
  using A = accumulator_t<T>;
  const T *gradient = static_cast<const T*>(a.dy), *g = static_cast<const T*>(a.gate),
          *u = static_cast<const T*>(a.up);
  T *dgate = static_cast<T*>(a.dgate), *dup = static_cast<T*>(a.dup);
  for (int64_t i = 0; i < n; ++i) {
    const A dy = static_cast<A>(gradient[i]), factor = static_cast<A>(u[i]);
    const GateValue<A> gate = gate_of<form>(static_cast<A>(g[i]));
    dgate[i] = T(dy * factor * gate.slope);
    dup[i] = T(dy * gate.value);
  }
}

template <class T>
constexpr GatedFunctions functions[] = {{forward<T, Gate::silu>, backward<T, Gate::silu>},
                                        {forward<T, Gate::gelu_tanh>, backward<T, Gate::gelu_tanh>},
                                        {forward<T, Gate::gelu_erf>, backward<T, Gate::gelu_erf>}};

GatedFunctions functions_for(Gate form, DType dtype, Isa isa) {
  constexpr const GatedFunctions* plain[] = {functions<double>, functions<float>, functions<bf16>,
                                             functions<f16>};
  const auto type = static_cast<size_t>(dtype), at = static_cast<size_t>(form);
  const GatedTable* table = ZG_AT_LEVEL(isa, gated_table);
  return table && table->form[at][type].forward ? table->form[at][type] : plain[type][at];
}

constexpr int64_t chunk_elements = 1 << 13;

}  // namespace

void gated_forward(const GatedForward& a, Workspace, Stream& stream) {
  const GatedFunctions f = functions_for(a.form, a.gate.dtype(), stream.traits().isa);
  const int64_t size = size_of(a.gate.dtype());
  parallel_for(stream.traits().threads, a.gate.numel(), chunk_elements,
               [&](int64_t begin, int64_t end) {
                 const int64_t from = begin * size;
                 f.forward(a.gate.raw() + from, a.up.raw() + from, a.y.raw() + from, end - begin);
               });
}

void gated_backward(const GatedBackward& a, Workspace, Stream& stream) {
  const GatedFunctions f = functions_for(a.form, a.gate.dtype(), stream.traits().isa);
  const int64_t size = size_of(a.gate.dtype());
  parallel_for(stream.traits().threads, a.gate.numel(), chunk_elements,
               [&](int64_t begin, int64_t end) {
                 const int64_t from = begin * size;
                 f.backward({.dy = a.dy.raw() + from,
                             .gate = a.gate.raw() + from,
                             .up = a.up.raw() + from,
                             .dgate = a.dgate.raw() + from,
                             .dup = a.dup.raw() + from},
                            end - begin);
               });
}

}  // namespace zg::cpu

#include <cmath>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/elementwise/gelu_scalar.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/portable_math.h"

// GELU and gates. Memory bound: forward of a gate reads two operands and writes one, backward reads
// three and writes two.
namespace zg::cpu {

ZG_DECLARE_LEVELS(GeluTable, gelu_table)
ZG_DECLARE_LEVELS(GatedTable, gated_table)

namespace {

/// Calls f(offset in bytes, number of elements) for the parts of tensors like x.
template <class F>
void for_parts(const Stream& stream, const Tensor& x, const F& f) {
  constexpr int64_t chunk_elements = 1 << 13;
  const int64_t size = size_of(x.dtype());
  parallel_for(stream.traits().threads, x.numel(), chunk_elements,
               [&](int64_t begin, int64_t end) { f(begin * size, end - begin); });
}

template <class T, Activation form>
void map(const void* x, void* y, int64_t n) {
  using A = accumulator_t<T>;
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(y);
  for (int64_t i = 0; i < n; ++i) out[i] = T(gelu(static_cast<A>(in[i]), form));
}

template <class T, Activation form>
void map_backward(const void* dy, const void* x, void* dx, int64_t n) {
  using A = accumulator_t<T>;
  const T* gradient = static_cast<const T*>(dy);
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(dx);
  for (int64_t i = 0; i < n; ++i)
    out[i] = T(static_cast<A>(gradient[i]) * gelu_derivative(static_cast<A>(in[i]), form));
}

template <Activation form>
constexpr GeluFunctions gelu_functions = {map<double, form>, map_backward<double, form>};

constexpr GeluTable plain = {{gelu_functions<Activation::gelu_tanh>},
                             {gelu_functions<Activation::gelu_erf>}};

static_assert(static_cast<int>(DType::f64) == 0 && static_cast<int>(DType::f16) == 3);

GeluFunctions functions_for(Activation activation, DType dtype, Isa isa) {
  const GeluTable& table = dtype == DType::f64 ? plain : ZG_AT_LEVEL(isa, gelu_table);
  return (activation == Activation::gelu_tanh ? table.tanh : table.erf)[static_cast<size_t>(dtype)];
}

template <class A>
struct GateValue {
  A value, slope;
};

template <Gate form, class A>
GateValue<A> gate_of(A x) {
  if constexpr (form == Gate::silu) {
    // Both halves from exp(-|x|), which cannot overflow. open + closed = 1.
    const A e = portable::exp(-std::fabs(x)), large = A(1) / (A(1) + e), small = e * large;
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

template <Gate form>
constexpr GatedFunctions gated_functions = {forward<double, form>, backward<double, form>};

constexpr GatedTable plain_gates = {{{gated_functions<Gate::silu>},
                                     {gated_functions<Gate::gelu_tanh>},
                                     {gated_functions<Gate::gelu_erf>}}};

GatedFunctions functions_for(Gate form, DType dtype, Isa isa) {
  const GatedTable& table = dtype == DType::f64 ? plain_gates : ZG_AT_LEVEL(isa, gated_table);
  return table.form[static_cast<size_t>(form)][static_cast<size_t>(dtype)];
}

}  // namespace

void gelu_forward(const GeluForward& a, Workspace, Stream& stream) {
  const GeluFunctions f = functions_for(a.activation, a.x.dtype(), stream.traits().isa);
  for_parts(stream, a.x,
            [&](int64_t at, int64_t n) { f.forward(a.x.raw() + at, a.y.raw() + at, n); });
}

void gelu_backward(const GeluBackward& a, Workspace, Stream& stream) {
  const GeluFunctions f = functions_for(a.activation, a.x.dtype(), stream.traits().isa);
  for_parts(stream, a.x, [&](int64_t at, int64_t n) {
    f.backward(a.dy.raw() + at, a.x.raw() + at, a.dx.raw() + at, n);
    if (a.y) f.forward(a.x.raw() + at, a.y.raw() + at, n);
  });
}

void gated_forward(const GatedForward& a, Workspace, Stream& stream) {
  const GatedFunctions f = functions_for(a.form, a.gate.dtype(), stream.traits().isa);
  for_parts(stream, a.gate, [&](int64_t at, int64_t n) {
    f.forward(a.gate.raw() + at, a.up.raw() + at, a.y.raw() + at, n);
  });
}

void gated_backward(const GatedBackward& a, Workspace, Stream& stream) {
  const GatedFunctions f = functions_for(a.form, a.gate.dtype(), stream.traits().isa);
  for_parts(stream, a.gate, [&](int64_t at, int64_t n) {
    f.backward({.dy = a.dy.raw() + at,
                .gate = a.gate.raw() + at,
                .up = a.up.raw() + at,
                .dgate = a.dgate.raw() + at,
                .dup = a.dup.raw() + at},
               n);
  });
}

}  // namespace zg::cpu

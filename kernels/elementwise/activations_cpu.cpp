#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/runtime/cpu/team.h"

// GELU and gates. Memory bound: forward of a gate reads two operands and writes one, backward reads
// three and writes two.
namespace zg::cpu {

ZG_DECLARE_LEVELS(ActivationTable, activation_table)

namespace {

/// Calls f(offset in bytes, number of elements) for the parts of tensors like x.
template <class F>
void for_parts(const Stream& stream, const Tensor& x, const F& f) {
  constexpr int64_t chunk_elements = 1 << 13;
  const int64_t size = size_of(x.dtype());
  parallel_for(stream.traits().threads, x.numel(), chunk_elements,
               [&](int64_t begin, int64_t end) { f(begin * size, end - begin); });
}

static_assert(static_cast<int>(Activation::gelu_tanh) == static_cast<int>(Gate::gelu_tanh) &&
              static_cast<int>(Activation::gelu_erf) == static_cast<int>(Gate::gelu_erf));
static_assert(static_cast<int>(DType::f64) == 0 && static_cast<int>(DType::f16) == 3);

template <class Form>
const ActivationFunctions& functions_for(Form form, const Tensor& x, const Stream& stream) {
  const ActivationTable& table = ZG_AT_LEVEL(stream.traits().isa, activation_table);
  return table.form[static_cast<size_t>(form)].type[static_cast<size_t>(x.dtype())];
}

}  // namespace

void gelu_forward(const GeluForward& a, Workspace, Stream& stream) {
  const ActivationFunctions& f = functions_for(a.activation, a.x, stream);
  for_parts(stream, a.x,
            [&](int64_t at, int64_t n) { f.forward(a.x.raw() + at, a.y.raw() + at, n); });
}

void gelu_backward(const GeluBackward& a, Workspace, Stream& stream) {
  const ActivationFunctions& f = functions_for(a.activation, a.x, stream);
  for_parts(stream, a.x, [&](int64_t at, int64_t n) {
    f.backward(a.dy.raw() + at, a.x.raw() + at, a.dx.raw() + at, n);
    if (a.y) f.forward(a.x.raw() + at, a.y.raw() + at, n);
  });
}

void gated_forward(const GatedForward& a, Workspace, Stream& stream) {
  const ActivationFunctions& f = functions_for(a.form, a.gate, stream);
  for_parts(stream, a.gate, [&](int64_t at, int64_t n) {
    f.gated_forward(a.gate.raw() + at, a.up.raw() + at, a.y.raw() + at, n);
  });
}

void gated_backward(const GatedBackward& a, Workspace, Stream& stream) {
  const ActivationFunctions& f = functions_for(a.form, a.gate, stream);
  for_parts(stream, a.gate, [&](int64_t at, int64_t n) {
    f.gated_backward({.dy = a.dy.raw() + at,
                      .gate = a.gate.raw() + at,
                      .up = a.up.raw() + at,
                      .dgate = a.dgate.raw() + at,
                      .dup = a.dup.raw() + at},
                     n);
  });
}

}  // namespace zg::cpu

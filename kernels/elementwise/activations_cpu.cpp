#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/elementwise/gelu.h"

// GELU and gates. Memory bound: forward of a gate reads two operands and writes one, backward reads
// three and writes two.
namespace zg::cpu {

ZG_DECLARE_LEVELS(ActivationTable, activation_table)

namespace {

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
  for_vectors(stream, 1, std::array{a.x, a.y},
              [&](const auto& at, int64_t n) { f.forward(at[0], at[1], n); });
}

void gelu_backward(const GeluBackward& a, Workspace, Stream& stream) {
  const ActivationFunctions& f = functions_for(a.activation, a.x, stream);
  if (!a.y)
    return for_vectors(stream, 1, std::array{a.dy, a.x, a.dx},
                       [&](const auto& at, int64_t n) { f.backward(at[0], at[1], at[2], n); });
  for_vectors(stream, 2, std::array{a.dy, a.x, a.dx, a.y}, [&](const auto& at, int64_t n) {
    f.backward(at[0], at[1], at[2], n);
    f.forward(at[1], at[3], n);
  });
}

void gated_forward(const GatedForward& a, Workspace, Stream& stream) {
  const ActivationFunctions& f = functions_for(a.form, a.gate, stream);
  for_vectors(stream, 1, std::array{a.gate, a.up, a.y},
              [&](const auto& at, int64_t n) { f.gated_forward(at[0], at[1], at[2], n); });
}

void gated_backward(const GatedBackward& a, Workspace, Stream& stream) {
  const ActivationFunctions& f = functions_for(a.form, a.gate, stream);
  for_vectors(stream, 2, std::array{a.dy, a.gate, a.up, a.dgate, a.dup},
              [&](const auto& at, int64_t n) {
                f.gated_backward(
                    {.dy = at[0], .gate = at[1], .up = at[2], .dgate = at[3], .dup = at[4]}, n);
              });
}

}  // namespace zg::cpu

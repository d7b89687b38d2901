#pragma once

#include "zerograd/kernels/kernel.h"

namespace zg {

/// The function of a gated layer's gate.
enum class Gate : uint8_t {
  silu,       ///< x sigmoid(x): SwiGLU
  gelu_tanh,  ///< GEGLU, tanh form
  gelu_erf    ///< GEGLU, erf form
};
ZG_API const char* name_of(Gate form);

/// y = g(gate) * up with g the function of `form`. Shazeer 2020, arXiv:2002.05202, section 2.
/// Computed in the accumulator dtype and rounded once.
struct GatedForward {
  Tensor gate;  ///< f64 | f32 | bf16 | f16, any shape
  Tensor up;    ///< like gate
  Tensor y;     ///< out, like gate; may be gate or up
  Gate form = Gate::silu;
};
/// dgate = dy * up * g'(gate), dup = dy * g(gate). Each may be one of the operands, but not both
/// the same.
struct GatedBackward {
  Tensor dy, gate, up;
  Tensor dgate, dup;  ///< out, like gate
  Gate form = Gate::silu;
};
ZG_API void validate(const GatedForward&);  ///< ShapeError, DTypeError
ZG_API void validate(const GatedBackward&);
inline std::vector<Operand> operands(const GatedForward& a) {
  return {{"gate", a.gate}, {"up", a.up}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const GatedBackward& a) {
  return {{"dy", a.dy},
          {"gate", a.gate},
          {"up", a.up},
          {"dgate", a.dgate, Operand::out},
          {"dup", a.dup, Operand::out}};
}

namespace kernels {
extern ZG_API Kernel<GatedForward> gated_forward;
extern ZG_API Kernel<GatedBackward> gated_backward;
}  // namespace kernels

}  // namespace zg

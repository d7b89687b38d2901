#pragma once

#include "zerograd/kernels/kernel.h"

namespace zg {

/// The form of GELU. Also the function that is applied to a product before it is stored
/// (kernels/matmul/matmul.h); only there it may be none.
enum class Activation : uint8_t { none, gelu_tanh, gelu_erf };

/// y = gelu(x), tanh or erf form. Hendrycks, Gimpel 2016, arXiv:1606.08415.
struct GeluForward {
  Tensor x;  ///< f64 | f32 | bf16 | f16, any shape
  Tensor y;  ///< out, like x
  Activation activation = Activation::gelu_tanh;
};
/// dx = dy * gelu'(x); dx may be dy.
struct GeluBackward {
  Tensor dy, x, dx;
  Activation activation = Activation::gelu_tanh;
  Tensor y;  ///< out, like x, or absent: gelu(x) with the bits of gelu_forward; may be x, not dx
};
ZG_API void validate(const GeluForward&);
ZG_API void validate(const GeluBackward&);
inline std::vector<Operand> operands(const GeluForward& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const GeluBackward& a) {
  return {{"dy", a.dy}, {"x", a.x}, {"dx", a.dx, Operand::out}, {"y", a.y, Operand::out}};
}

namespace kernels {
extern ZG_API Kernel<GeluForward> gelu_forward;
extern ZG_API Kernel<GeluBackward> gelu_backward;
}  // namespace kernels

}  // namespace zg

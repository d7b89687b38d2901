// y = cap tanh(x / cap): the soft cap of logits (Gemma 2, arXiv:2408.00118, section 2) in one pass
// over memory, where ops of the library take three.
#include "zerograd/kernels/kernel.h"

struct SoftCap {
  zg::Tensor x;      ///< f32, any shape
  zg::Tensor y;      ///< out, like x
  float cap = 1.0f;  ///< above 0
  zg::Tensor dy;     ///< like x: y becomes the gradient, dy (1 - tanh(x / cap)^2); or absent
};
// Plans, launch counts, traces and guards know the tensors from this list.
inline std::vector<zg::Operand> operands(const SoftCap& a) {
  return {{"x", a.x}, {"dy", a.dy}, {"y", a.y, zg::Operand::out}};
}

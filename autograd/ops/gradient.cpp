#include "zerograd/autograd/ops/gradient.h"

#include "zerograd/autograd/ops/operand.h"
#include "zerograd/kernels/elementwise/elementwise.h"

namespace zg {

InputGradient::InputGradient(const BackwardPass& pass, int input) : pass_(pass), input_(input) {
  if (pass.needs(input)) taken_ = written_ = pass.make_gradient(input);
}

InputGradient::InputGradient(const BackwardPass& pass, int input, DType written)
    : InputGradient(pass, input) {
  if (taken_ && taken_.dtype() != written)
    written_ = Tensor::empty(taken_.shape(), written, taken_.device());
}

Tensor InputGradient::view(const Shape& shape) const {
  return written_ ? written_.view(shape) : Tensor();
}

void InputGradient::accumulate() const {
  if (!taken_) return;
  if (taken_.dtype() != written_.dtype()) kernels::cast({written_, taken_}, pass_.stream());
  pass_.accumulate(input_, taken_);
}

Tensor scaled(const Tensor& x, double factor, Stream& stream) {
  const Tensor y = empty_like(x);
  kernels::axpby({.x = x, .y = y, .a = factor, .b = 0.0}, stream);
  return y;
}

}  // namespace zg

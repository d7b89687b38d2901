#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/operand.h"
#include "zerograd/kernels/elementwise/elementwise.h"

namespace zg {

Var cast(const Var& x, DType dtype) {
  const Tensor values = operand("cast", "x", x);
  if (values.dtype() == dtype) return x;
  struct None {};
  const Tensor y = Tensor::empty(values.shape(), dtype, values.device());
  kernels::cast({values, y}, y.device().compute());
  if (!is_floating(dtype)) return Var(y);
  return record("cast", {x}, y, {}, None{}, [](const None&, const BackwardPass& pass) {
    const InputGradient dx(pass, 0);
    kernels::cast({pass.gradient_of_output(), dx.tensor()}, pass.stream());
    dx.accumulate();
  });
}

Var detach(const Var& x) { return Var(operand("detach", "x", x)); }

}  // namespace zg

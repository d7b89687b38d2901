#include "zerograd/autograd/ops/broadcast.h"

#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/reduce/reduce.h"

namespace zg {

void expand(const Tensor& x, const Tensor& y, Stream& stream) {
  kernels::strided_copy({.x = x,
                         .y = y,
                         .extents = y.shape(),
                         .x_strides = broadcast_strides(x.shape(), y.shape()),
                         .y_strides = broadcast_strides(y.shape(), y.shape())},
                        stream);
}

void accumulate_reduced(const BackwardPass& pass, int input, const Tensor& gradient,
                        const Shape& shape) {
  if (!pass.needs(input)) return;
  if (gradient.shape() == shape) return pass.accumulate(input, gradient);
  const int missing = gradient.shape().rank() - shape.rank();
  Shape kept = gradient.shape();
  uint32_t axes = 0;
  for (int i = 0; i < kept.rank(); ++i) {
    if (kept[i] == (i < missing ? 1 : shape[i - missing])) continue;
    kept = kept.with(i, 1);
    axes |= 1u << i;
  }
  if (axes == 0) return pass.accumulate(input, gradient.view(shape));
  const InputGradient reduced(pass, input);
  kernels::reduce({ReduceOp::sum, gradient, reduced.view(kept), axes}, pass.stream());
  reduced.accumulate();
}

}  // namespace zg

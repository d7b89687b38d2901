#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/broadcast.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/movement.h"
#include "zerograd/autograd/ops/operand.h"

namespace zg {

Var reshape(const Var& x, const Shape& shape) {
  const Tensor values = operand("reshape", "x", x);
  if (values.numel() != shape.numel())
    refuse_shape("reshape", "x", values.shape(),
                 "the " + std::to_string(shape.numel()) + " elements of " + shape.str() + ", got " +
                     std::to_string(values.numel()));
  return record("reshape", {x}, values.view(shape), {}, values.shape(),
                [](const Shape& of_x, const BackwardPass& pass) {
                  pass.accumulate(0, pass.gradient_of_output().view(of_x));
                });
}

Var reshape(const Var& x, std::initializer_list<int64_t> extents) {
  return reshape(x, Shape::filled(extents, operand("reshape", "x", x).numel(), "reshape"));
}

Var permute(const Var& x, std::initializer_list<int> axes) {
  const Shape shape = operand("permute", "x", x).shape();
  if (static_cast<int>(axes.size()) != shape.rank())
    refuse_shape("permute", "x", shape,
                 "rank " + std::to_string(axes.size()) + ", one axis of x for each axis of y");
  AxisOrder order{.rank = shape.rank()};
  uint32_t seen = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int axis = order.order[i] = axis_of("permute", shape, axes.begin()[i]);
    if (seen & (1u << axis))
      throw ShapeError("permute: axis " + std::to_string(axis) + " of " + shape.str() +
                       " is given twice; expected each axis once");
    seen |= 1u << axis;
  }
  return permuted("permute", x, order);
}

Var slice(const Var& x, int axis, int64_t begin, int64_t end) {
  const Tensor values = operand("slice", "x", x);
  axis = axis_of("slice", values.shape(), axis);
  if (begin < 0 || end < begin || end > values.extent(axis))
    throw ShapeError("slice: range " + std::to_string(begin) + " to " + std::to_string(end) +
                     " is outside axis " + std::to_string(axis) + " of " + values.shape().str() +
                     "; expected 0 <= begin <= end <= " + std::to_string(values.extent(axis)));
  struct Range {
    int axis;
    int64_t begin;
  };
  return record("slice", {x}, block(values, axis, begin, end, values.device().compute()), {},
                Range{axis, begin}, [](const Range& n, const BackwardPass& pass) {
                  const Tensor& dy = pass.gradient_of_output();
                  const InputGradient dx(pass, 0, dy.dtype());
                  fill_zero(dx.tensor(), pass.stream());
                  write_block(dy, dx.tensor(), n.axis, n.begin, pass.stream());
                  dx.accumulate();
                });
}

Var broadcast_to(const Var& x, const Shape& shape) {
  const Tensor values = operand("broadcast_to", "x", x);
  if (values.shape() == shape) return x;
  if (broadcast(values.shape(), shape, "broadcast_to") != shape)
    refuse_shape("broadcast_to", "x", values.shape(), "one that broadcasts to " + shape.str());
  auto repeated = [&] {
    const Tensor y = empty_like(values, shape);
    expand(values, y, y.device().compute());
    return y;
  };
  const Tensor y = values.numel() == shape.numel() ? values.view(shape) : repeated();
  return record("broadcast_to", {x}, y, {}, values.shape(),
                [](const Shape& of_x, const BackwardPass& pass) {
                  accumulate_reduced(pass, 0, pass.gradient_of_output(), of_x);
                });
}

}  // namespace zg

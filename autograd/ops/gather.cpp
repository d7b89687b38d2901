#include "autograd/ops.h"
#include "autograd/ops/gradient.h"
#include "autograd/ops/operand.h"
#include "kernels/check.h"
#include "kernels/movement.h"

namespace zg {
namespace {

/// The index has the shape of `source`, which is x's but for the extent along the axis.
void check_places(const char* op, const Tensor& x, int axis, const Tensor& index,
                  const Shape& source) {
  check_index(op, "index", index);
  check_device(op, {&x, &index});
  if (index.shape() != source) refuse_shape(op, "index", index.shape(), source.str());
  if (source.rank() != x.shape().rank() || x.shape().with(axis, source[axis]) != source)
    refuse_shape(op, "index", source, x.shape().str() + " but for axis " + std::to_string(axis));
}

}  // namespace

Var gather(const Var& x, int axis, const Tensor& index) {
  const Tensor values = operand("gather", "x", x);
  axis = axis_of("gather", values.shape(), axis);
  check_places("gather", values, axis, index, index.shape());
  const Tensor y = empty_like(values, index.shape());
  kernels::gather({values, index, y, axis}, y.device().compute());
  return record("gather", {x}, y, {index}, axis, [](int along, const BackwardPass& pass) {
    const Tensor& dy = pass.gradient_of_output();
    const InputGradient dx(pass, 0, dy.dtype());
    fill_zero(dx.tensor(), pass.stream());
    kernels::scatter_add({dy, pass.saved(0), dx.tensor(), along}, pass.stream());
    dx.accumulate();
  });
}

Var scatter_add(const Var& base, int axis, const Tensor& index, const Var& source) {
  const Tensor values = floating_operand("scatter_add", "base", base);
  const Tensor added = operand("scatter_add", "source", source);
  check_alike("scatter_add", "base", values, "source", added);
  axis = axis_of("scatter_add", values.shape(), axis);
  check_places("scatter_add", values, axis, index, added.shape());
  const Tensor y = empty_like(values);
  copy(values, y, y.device().compute());
  kernels::scatter_add({added, index, y, axis}, y.device().compute());
  return record("scatter_add", {base, source}, y, {index}, axis,
                [](int along, const BackwardPass& pass) {
                  const Tensor& dy = pass.gradient_of_output();
                  pass.accumulate(0, dy);
                  const InputGradient dsource(pass, 1, dy.dtype());
                  if (!dsource) return;
                  kernels::gather({dy, pass.saved(0), dsource.tensor(), along}, pass.stream());
                  dsource.accumulate();
                });
}

}  // namespace zg

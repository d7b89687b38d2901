#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/operand.h"
#include "zerograd/kernels/movement/movement.h"

namespace zg {
namespace {

/// As PyTorch takes a scalar: one element along axis 0.
Tensor with_axis(const Tensor& x) { return x && x.shape().rank() == 0 ? x.view({1}) : x; }

// An index without elements picks nothing, whatever the shape of x.
void pick(const Gather& args, Stream& stream) {
  if (args.index.numel() > 0) kernels::gather(args, stream);
}

void add_where(const ScatterAdd& args, Stream& stream) {
  if (args.index.numel() > 0) kernels::scatter_add(args, stream);
}

/// The gradient of a source: that of its elements which index reached, and 0 for the others.
void write_picked(const Gather& args, Stream& stream) {
  const Shape &index = args.index.shape(), &source = args.y.shape();
  if (index == source) return pick(args, stream);
  fill_zero(args.y, stream);
  if (index.numel() == 0) return;
  Gather picked = args;
  picked.y = empty_like(args.y, index);
  pick(picked, stream);
  kernels::strided_copy({.x = picked.y,
                         .y = args.y,
                         .extents = index,
                         .x_strides = broadcast_strides(index, index),
                         .y_strides = broadcast_strides(source, source)},
                        stream);
}

}  // namespace

Var gather(const Var& x, int axis, const Tensor& index) {
  const Tensor values = with_axis(operand("gather", "x", x));
  check_index("gather", "index", index);
  axis = axis_of("gather", values.shape(), axis);
  const Tensor y = empty_like(values, index.shape());
  const Tensor places = with_axis(index);
  pick({values, places, with_axis(y), axis}, y.device().compute());
  return record("gather", {x}, y, {places}, axis, [](int along, const BackwardPass& pass) {
    const Tensor& dy = pass.gradient_of_output();
    const InputGradient dx(pass, 0, dy.dtype());
    fill_zero(dx.tensor(), pass.stream());
    add_where({with_axis(dy), pass.saved(0), with_axis(dx.tensor()), along}, pass.stream());
    dx.accumulate();
  });
}

Var scatter_add(const Var& base, int axis, const Tensor& index, const Var& source) {
  const Tensor values = floating_operand("scatter_add", "base", base);
  const Tensor added = operand("scatter_add", "source", source);
  check_index("scatter_add", "index", index);
  check_alike("scatter_add", "base", values, "source", added);
  axis = axis_of("scatter_add", with_axis(values).shape(), axis);
  const Tensor y = empty_like(values), places = with_axis(index);
  const ScatterAdd sum{with_axis(added), places, with_axis(y), axis};
  if (index.numel() > 0) validate(sum);  // before anything is queued
  copy(values, y, y.device().compute());
  add_where(sum, y.device().compute());
  return record("scatter_add", {base, source}, y, {places}, axis,
                [](int along, const BackwardPass& pass) {
                  const Tensor& dy = pass.gradient_of_output();
                  pass.accumulate(0, dy);
                  const InputGradient dsource(pass, 1, dy.dtype());
                  if (!dsource) return;
                  write_picked({with_axis(dy), pass.saved(0), with_axis(dsource.tensor()), along},
                               pass.stream());
                  dsource.accumulate();
                });
}

}  // namespace zg

#include "zerograd/autograd/ops/movement.h"

#include <numeric>

#include "zerograd/autograd/ops/broadcast.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/operand.h"
#include "zerograd/kernels/movement/movement.h"

namespace zg {
namespace {

/// Axes of extent 1 may move freely; the others must stay in order for the bytes to stay put.
bool keeps_bytes(const Shape& shape, const AxisOrder& axes) {
  int last = -1;
  for (int i = 0; i < axes.rank; ++i) {
    const int axis = axes.order[static_cast<size_t>(i)];
    if (shape[axis] == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

Shape permuted(const Shape& shape, const AxisOrder& axes) {
  Shape result = shape;
  for (int i = 0; i < axes.rank; ++i)
    result = result.with(i, shape[axes.order[static_cast<size_t>(i)]]);
  return result;
}

void copy_permuted(const Tensor& x, const Tensor& y, const AxisOrder& axes, Stream& stream) {
  const Strides strides = broadcast_strides(x.shape(), x.shape());
  Strides x_strides{};
  for (size_t i = 0; i < static_cast<size_t>(axes.rank); ++i)
    x_strides[i] = strides[static_cast<size_t>(axes.order[i])];
  kernels::strided_copy({.x = x,
                         .y = y,
                         .extents = y.shape(),
                         .x_strides = x_strides,
                         .y_strides = broadcast_strides(y.shape(), y.shape())},
                        stream);
}

/// A tensor around one axis: `outer` slabs, each with `row` elements per step along the axis.
struct Slabs {
  int64_t outer = 1, row = 1;

  Slabs(const Shape& shape, int axis) {
    for (int i = 0; i < axis; ++i) outer *= shape[i];
    for (int i = axis + 1; i < shape.rank(); ++i) row *= shape[i];
  }
};

}  // namespace

AxisOrder AxisOrder::swapping(int rank, int a, int b) {
  AxisOrder axes{.rank = rank};
  std::iota(axes.order.begin(), axes.order.end(), 0);
  auto at = [&](int axis) -> int& { return axes.order[static_cast<size_t>((axis + rank) % rank)]; };
  std::swap(at(a), at(b));
  return axes;
}

AxisOrder AxisOrder::inverse() const {
  AxisOrder axes{.rank = rank};
  for (int i = 0; i < rank; ++i) axes.order[static_cast<size_t>(order[static_cast<size_t>(i)])] = i;
  return axes;
}

bool AxisOrder::keeps_place() const {
  for (int i = 0; i < rank; ++i)
    if (order[static_cast<size_t>(i)] != i) return false;
  return true;
}

Var permuted(const char* op, const Var& x, const AxisOrder& axes) {
  const Tensor values = x.value();
  const Shape shape = permuted(values.shape(), axes);
  auto transposed = [&] {
    const Tensor y = empty_like(values, shape);
    copy_permuted(values, y, axes, y.device().compute());
    return y;
  };
  const Tensor y = keeps_bytes(values.shape(), axes) ? values.view(shape) : transposed();
  return record(op, {x}, y, {}, axes, [](const AxisOrder& forward, const BackwardPass& pass) {
    const Tensor& dy = pass.gradient_of_output();
    const InputGradient dx(pass, 0, dy.dtype());
    copy_permuted(dy, dx.tensor(), forward.inverse(), pass.stream());
    dx.accumulate();
  });
}

Tensor block(const Tensor& x, int axis, int64_t begin, int64_t end, Stream& stream) {
  const Slabs slabs(x.shape(), axis);
  const Shape shape = x.shape().with(axis, end - begin);
  if (slabs.outer == 1) return x.flat(begin * slabs.row, shape.numel()).view(shape);
  const Tensor part = empty_like(x, shape);
  if (part.numel() == 0) return part;
  const int64_t run = (end - begin) * slabs.row;
  kernels::strided_copy({.x = x,
                         .y = part,
                         .extents = {slabs.outer, run},
                         .x_strides = {x.extent(axis) * slabs.row, 1},
                         .y_strides = {run, 1},
                         .x_offset = begin * slabs.row},
                        stream);
  return part;
}

void write_block(const Tensor& part, const Tensor& whole, int axis, int64_t begin, Stream& stream) {
  if (part.numel() == 0) return;
  const Slabs slabs(whole.shape(), axis);
  const int64_t run = part.extent(axis) * slabs.row;
  kernels::strided_copy({.x = part,
                         .y = whole,
                         .extents = {slabs.outer, run},
                         .x_strides = {run, 1},
                         .y_strides = {whole.extent(axis) * slabs.row, 1},
                         .y_offset = begin * slabs.row},
                        stream);
}

}  // namespace zg

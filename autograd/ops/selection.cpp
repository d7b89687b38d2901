#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/runtime/text/format.h"

// Logic, and ops that choose or move elements. Besides flip they are made of other ops.
namespace zg {
namespace {

Tensor bool_operand(const char* op, const char* name, const Var& x) {
  const Tensor values = operand(op, name, x);
  check_dtype(op, name, values, DType::boolean);
  return values;
}

/// Writes x to y in reverse along the axes whose bits are set.
void copy_flipped(const Tensor& x, const Tensor& y, uint32_t axes, Stream& stream) {
  if (x.numel() == 0) return;
  const Strides strides = broadcast_strides(x.shape(), x.shape());
  StridedCopy copy{
      .x = x, .y = y, .extents = x.shape(), .x_strides = strides, .y_strides = strides};
  for (int axis = 0; axis < x.shape().rank(); ++axis)
    if (int64_t& stride = copy.x_strides[static_cast<size_t>(axis)]; axes & (1u << axis)) {
      copy.x_offset += (x.extent(axis) - 1) * stride;
      stride = -stride;
    }
  kernels::strided_copy(copy, stream);
}

}  // namespace

Var logical_and(const Var& a, const Var& b) {
  bool_operand("logical_and", "a", a), bool_operand("logical_and", "b", b);
  return where(a, b, a);
}

Var logical_or(const Var& a, const Var& b) {
  bool_operand("logical_or", "a", a), bool_operand("logical_or", "b", b);
  return where(a, a, b);
}

Var logical_not(const Var& x) {
  const Device device = bool_operand("logical_not", "x", x).device();
  const Var no(Tensor::full({}, 0, DType::boolean, device));
  const Var yes(Tensor::full({}, 1, DType::boolean, device));
  return where(x, no, yes);
}

Var isnan(const Var& x) {
  floating_operand("isnan", "x", x);
  return not_equal(x, x);
}

Var isfinite(const Var& x) {
  floating_operand("isfinite", "x", x);
  const Var size = abs(detach(x));
  return less(size, std::numeric_limits<double>::infinity());
}

Var any(const Var& x, const Axes& axes, bool keep_axes) {
  bool_operand("any", "x", x);
  const Var ones = cast(x, DType::f32);
  return cast(sum(ones, axes, keep_axes), DType::boolean);  // a sum of ones is never 0 again
}

Var all(const Var& x, const Axes& axes, bool keep_axes) {
  bool_operand("all", "x", x);
  const Var wrong = logical_not(x);
  return logical_not(any(wrong, axes, keep_axes));
}

Var flip(const Var& x, const Axes& axes) {
  const Tensor values = operand("flip", "x", x), y = empty_like(values);
  uint32_t bits = 0;
  for (const int axis : axes) bits |= 1u << axis_of("flip", values.shape(), axis);
  copy_flipped(values, y, bits, y.device().compute());
  return record("flip", {x}, y, {}, bits, [](uint32_t flipped, const BackwardPass& pass) {
    const Tensor& dy = pass.gradient_of_output();
    const InputGradient dx(pass, 0, dy.dtype());
    copy_flipped(dy, dx.tensor(), flipped, pass.stream());
    dx.accumulate();
  });
}

Var roll(const Var& x, int64_t shift, int axis) {
  const Shape shape = operand("roll", "x", x).shape();
  axis = axis_of("roll", shape, axis);
  const int64_t extent = shape[axis];
  if (extent == 0) return x;
  const int64_t begin = extent - (shift % extent + extent) % extent;
  if (begin == extent) return x;
  const Var last = slice(x, axis, begin, extent), first = slice(x, axis, 0, begin);
  return concat({last, first}, axis);
}

Var index_select(const Var& x, int axis, const Tensor& index) {
  const Shape shape = operand("index_select", "x", x).shape();
  check_index("index_select", "index", index);
  if (index.shape().rank() != 1)
    refuse_shape("index_select", "index", index.shape(), "rank 1: the places along the axis");
  axis = axis_of("index_select", shape, axis);
  std::vector<int64_t> extents(static_cast<size_t>(shape.rank()), 1);
  extents[static_cast<size_t>(axis)] = index.numel();
  const Var along(index.view(Shape(extents)));
  return gather(x, axis, broadcast_to(along, shape.with(axis, index.numel())).value());
}

Var take(const Var& x, const Tensor& index) {
  operand("take", "x", x), check_index("take", "index", index);
  const Var flat = reshape(x, {-1});
  return reshape(gather(flat, 0, index.view({index.numel()})), index.shape());
}

Var diag(const Var& x, int64_t diagonal) {
  const Tensor values = operand("diag", "x", x);
  const Shape& shape = values.shape();
  const int64_t right = std::max<int64_t>(diagonal, 0), down = std::max<int64_t>(-diagonal, 0);
  if (shape.rank() ==
      1) {  // column j of row j - diagonal is the element j of x, moved to the right
    const Tensor columns = arange(0, shape[0] + right + down, DType::i64, values.device());
    const Var line = pad(x, 0, right, down), rows = unsqueeze(add(Var(columns), 1.0 * diagonal), 1);
    return masked_fill(line, not_equal(rows, Var(columns)), 0.0);
  }
  if (shape.rank() != 2) refuse_shape("diag", "x", shape, "rank 1 or 2");
  const int64_t count = std::min(shape[0] - down, shape[1] - right);
  if (count < 0)
    refuse_shape("diag", "x", shape, fmt::format("a matrix that has diagonal {}", diagonal));
  const Var rows = slice(x, 0, down, down + count);
  const Tensor places = arange(right, right + count, DType::i64, values.device());
  return reshape(gather(rows, 1, places.view({count, 1})), {count});
}

std::vector<Var> meshgrid(std::span<const Var> axes) {
  std::vector<int64_t> extents;
  for (const Var& axis : axes) {
    const Shape shape = operand("meshgrid", "an axis", axis).shape();
    if (shape.rank() != 1) refuse_shape("meshgrid", "an axis", shape, "rank 1");
    extents.push_back(shape[0]);
  }
  const Shape whole(extents);
  std::vector<Var> grids;
  for (size_t i = 0; i < axes.size(); ++i) {
    std::vector<int64_t> own(extents.size(), 1);
    own[i] = extents[i];
    const Var line = reshape(axes[i], Shape(own));
    grids.push_back(broadcast_to(line, whole));
  }
  return grids;
}

}  // namespace zg

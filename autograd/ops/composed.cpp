#include <cstdint>
#include <limits>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/text/format.h"

// Ops that are made of other ops. Their gradients are those of the parts.
namespace zg {
namespace {

/// A number as a constant of x's dtype, for where(). `x` is floating.
Var number_like(double value, const Tensor& x) {
  return Tensor::full({}, value, x.dtype(), x.device());
}

/// The reduced axes, as the parts of an op would check them, but named by the op itself. Returns
/// the number of elements of x for each element of the result.
int64_t check_axes(const char* op, const Shape& shape, std::initializer_list<int> axes) {
  if (axes.size() == 0) return shape.numel();
  int64_t count = 1;
  uint32_t seen = 0;
  for (const int given : axes) {
    const int axis = axis_of(op, shape, given);
    if (seen & (1u << axis))
      throw ShapeError(fmt::format("{}: axis {} of {} is given twice; expected distinct axes", op,
                                   given, shape));
    seen |= 1u << axis;
    count *= shape[axis];
  }
  return count;
}
/// The same for reductions that need an element.
void check_elements(const char* op, const Shape& shape, std::initializer_list<int> axes) {
  if (check_axes(op, shape, axes) == 0) refuse_shape(op, "x", shape, "an element along the axes");
}

/// x with 0 where column j of row i is kept by neither triangle: j - i > diagonal (lower) or j - i
/// < diagonal (upper). The mask is made on the host: a byte for each element of the last two axes.
Var triangle(const char* op, const Var& x, int64_t diagonal, bool lower) {
  const Tensor values = floating_operand(op, "x", x);
  check_rank(op, "x", values, 2);
  const int64_t rows = values.extent(-2), columns = values.extent(-1);
  std::vector<uint8_t> outside(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      outside[static_cast<size_t>(i * columns + j)] = lower ? j - i > diagonal : j - i < diagonal;
  const Tensor bytes = Tensor::from(outside, {rows, columns}, values.device());
  const Tensor mask = Tensor::empty({rows, columns}, DType::boolean, values.device());
  kernels::cast({bytes, mask}, values.device().compute());
  return masked_fill(x, Var(mask), 0.0);
}

}  // namespace

Var rsqrt(const Var& x) {
  floating_operand("rsqrt", "x", x);
  const Var root = sqrt(x);
  return reciprocal(root);
}

Var masked_fill(const Var& x, const Var& mask, double value) {
  const Tensor values = floating_operand("masked_fill", "x", x);
  check_dtype("masked_fill", "mask", operand("masked_fill", "mask", mask), DType::boolean);
  const Var constant = number_like(value, values);
  return where(mask, constant, x);
}

Var clamp(const Var& x, double low, double high) {
  const Tensor values = floating_operand("clamp", "x", x);
  if (!(low <= high))
    throw ConfigError(
        fmt::format("clamp: low is {:g}, high is {:g}; expected low <= high", low, high));
  const Var from_below = masked_fill(x, less(x, low), low);
  return masked_fill(from_below, greater(x, high), high);
}

Var min(const Var& x, std::initializer_list<int> axes, bool keep_axes) {
  check_elements("min", floating_operand("min", "x", x).shape(), axes);
  const Var largest = max(neg(x), axes, keep_axes);
  return neg(largest);
}

Var var(const Var& x, std::initializer_list<int> axes, int64_t correction, bool keep_axes) {
  const Tensor values = floating_operand("var", "x", x);
  const int64_t count = check_axes("var", values.shape(), axes);
  if (count <= correction)
    refuse_shape("var", "x", values.shape(),
                 fmt::format("more than {} elements along the axes, got {}", correction, count));
  if (values.dtype() == DType::bf16 || values.dtype() == DType::f16) {
    const Var wide = var(cast(x, DType::f32), axes, correction, keep_axes);
    return cast(wide, values.dtype());
  }
  const Var average = mean(x, axes, true);
  const Var distance = sub(x, average);
  const Var squares = mul(distance, distance);
  const Var total = sum(squares, axes, keep_axes);
  return mul(total, 1.0 / static_cast<double>(count - correction));
}

Var logsumexp(const Var& x, std::initializer_list<int> axes, bool keep_axes) {
  const Tensor values = floating_operand("logsumexp", "x", x);
  check_elements("logsumexp", values.shape(), axes);
  const Var largest = detach(max(x, axes, true));
  // An infinity minus itself is NaN.
  const Var shift =
      masked_fill(largest, equal(abs(largest), std::numeric_limits<double>::infinity()), 0.0);
  const Var terms = exp(sub(x, shift));
  const Var logarithm = log(sum(terms, axes, true));
  const Var result = add(logarithm, shift);
  if (keep_axes) return result;
  std::vector<bool> is_reduced(static_cast<size_t>(values.shape().rank()), axes.size() == 0);
  for (const int axis : axes)
    is_reduced[static_cast<size_t>(axis_of("logsumexp", values.shape(), axis))] = true;
  std::vector<int64_t> left;
  for (size_t axis = 0; axis < is_reduced.size(); ++axis)
    if (!is_reduced[axis]) left.push_back(values.shape()[static_cast<int>(axis)]);
  return reshape(result, Shape(left));
}

Var transpose(const Var& x, int a, int b) {
  const Shape shape = operand("transpose", "x", x).shape();
  return permuted("transpose", x,
                  AxisOrder::swapping(shape.rank(), axis_of("transpose", shape, a),
                                      axis_of("transpose", shape, b)));
}

Var squeeze(const Var& x, int axis) {
  const Shape shape = operand("squeeze", "x", x).shape();
  axis = axis_of("squeeze", shape, axis);
  if (shape[axis] != 1)
    refuse_shape("squeeze", "x", shape, fmt::format("extent 1 along axis {}", axis));
  std::vector<int64_t> extents;
  for (int i = 0; i < shape.rank(); ++i)
    if (i != axis) extents.push_back(shape[i]);
  return reshape(x, Shape(extents));
}

Var unsqueeze(const Var& x, int axis) {
  const Shape shape = operand("unsqueeze", "x", x).shape();
  const int rank = shape.rank() + 1, place = axis < 0 ? axis + rank : axis;
  if (place < 0 || place >= rank || rank > Shape::max_rank)
    throw ShapeError(
        fmt::format("unsqueeze: axis {} of a result of rank {}; expected {} to {}, and "
                    "at most rank {}",
                    axis, rank, -rank, rank - 1, Shape::max_rank));
  std::vector<int64_t> extents;
  extents.reserve(static_cast<size_t>(rank));
  for (int i = 0; i < rank; ++i) extents.push_back(i == place ? 1 : shape[i < place ? i : i - 1]);
  return reshape(x, Shape(extents));
}

Var stack(std::span<const Var> parts, int axis) {
  if (parts.empty()) throw ShapeError("stack: no parts; expected at least one tensor");
  const Tensor first = operand("stack", "the first part", parts[0]);
  const int rank = first.shape().rank() + 1, place = axis < 0 ? axis + rank : axis;
  if (place < 0 || place >= rank || rank > Shape::max_rank)
    throw ShapeError(
        fmt::format("stack: axis {} of a result of rank {}; expected {} to {}, and at "
                    "most rank {}",
                    axis, rank, -rank, rank - 1, Shape::max_rank));
  std::vector<Var> rows;
  rows.reserve(parts.size());
  for (const Var& part : parts) {
    const Tensor values = operand("stack", "a part", part);
    check_alike("stack", "the first part", first, "another", values);
    if (values.shape() != first.shape())
      refuse_shape("stack", "a part", values.shape(), first.shape().str());
    rows.push_back(unsqueeze(part, place));
  }
  return concat(rows, place);
}

Var repeat(const Var& x, std::initializer_list<int64_t> counts) {
  const Shape shape = operand("repeat", "x", x).shape();
  if (static_cast<int>(counts.size()) != shape.rank())
    refuse_shape("repeat", "x", shape,
                 fmt::format("rank {}, a count for each axis", counts.size()));
  Var repeated = x;
  int axis = 0;
  for (const int64_t count : counts) {
    if (count < 0)
      throw ShapeError(fmt::format("repeat: a count of {}; expected 0 or more", count));
    if (count == 0) repeated = slice(repeated, axis, 0, 0);
    if (count > 1) repeated = concat(std::vector<Var>(static_cast<size_t>(count), repeated), axis);
    ++axis;
  }
  return repeated;
}

Var tril(const Var& x, int64_t diagonal) { return triangle("tril", x, diagonal, true); }
Var triu(const Var& x, int64_t diagonal) { return triangle("triu", x, diagonal, false); }

}  // namespace zg

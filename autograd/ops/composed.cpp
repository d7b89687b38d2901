#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/strided.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/checked_product.h"
#include "zerograd/runtime/text/format.h"

// Ops that are made of other ops. Their gradients are those of the parts.
namespace zg {
namespace {

/// The axis of a new axis in a result of one rank more than `shape`, counted from the front.
int new_axis(const char* op, const Shape& shape, int axis) {
  const int rank = shape.rank() + 1, place = axis < 0 ? axis + rank : axis;
  if (place < 0 || place >= rank || rank > Shape::max_rank)
    raise<ShapeError>("{}: axis {} of a result of rank {}; expected {} to {}, and at most rank {}",
                      op, axis, rank, -rank, rank - 1, Shape::max_rank);
  return place;
}

/// x with 0 where column j of row i is kept by neither triangle: j - i > diagonal (lower) or j - i
/// < diagonal (upper). The mask is made on the host: a byte for each element of the last two axes.
Var triangle(const char* op, const Var& x, int64_t diagonal, bool lower) {
  const Tensor values = operand(op, "x", x);
  check_rank(op, "x", values.shape(), 2);
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

Tensor arange(int64_t begin, int64_t end, DType dtype, const Device& device) {
  if (begin > end || dtype == DType::boolean)
    raise<ConfigError>(
        "arange: begin is {}, end is {}, dtype is {}; expected begin <= end and any dtype but bool",
        begin, end, dtype);
  if (int64_t count = 0; __builtin_sub_overflow(end, begin, &count) || count > largest_product)
    raise<ShapeError>("arange: begin is {}, end is {}; expected at most {} numbers", begin, end,
                      largest_product);
  if (begin < end) check_holds("arange", dtype, begin, end - 1);
  check_host_memory("arange", {end - begin}, sizeof(int64_t));
  std::vector<int64_t> numbers(static_cast<size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return cast(Var(Tensor::from(numbers, {end - begin}, device)), dtype).value();
}

Tensor one_hot(const Tensor& ids, int64_t classes, DType dtype) {
  check_index("one_hot", "ids", ids);
  if (classes < 1) raise<ConfigError>("one_hot: classes is {}; expected 1 or more", classes);
  const Var columns(arange(0, classes, ids.dtype(), ids.device()));
  const Var rows = named("one_hot", [&] { return unsqueeze(Var(ids), -1); });
  return cast(equal(rows, columns), dtype).value();
}

Var pad(const Var& x, int axis, int64_t before, int64_t after, double value) {
  const Tensor values = operand("pad", "x", x);
  axis = axis_of("pad", values.shape(), axis);
  check_number("pad", value, values);
  if (before < 0 || after < 0)
    raise<ConfigError>("pad: before is {}, after is {}; expected 0 or more; try slice, which cuts",
                       before, after);
  std::vector<Var> parts;
  const auto fill = [&](int64_t extent) {
    const Shape shape = named("pad", [&] { return values.shape().with(axis, extent); });
    if (extent > 0) parts.emplace_back(Tensor::full(shape, value, values.dtype(), values.device()));
  };
  fill(before);
  parts.push_back(x);
  fill(after);
  return concat(parts, axis);
}

Var rsqrt(const Var& x) {
  floating_operand("rsqrt", "x", x);
  const Var root = sqrt(x);
  return reciprocal(root);
}

Var exp2(const Var& x) {
  return pow(number_like("exp2", 2.0, floating_operand("exp2", "x", x)), x);
}

Var logsigmoid(const Var& x) {
  floating_operand("logsigmoid", "x", x);
  const Var negative = neg(x);
  const Var loss = softplus(negative);
  return neg(loss);
}

Var masked_fill(const Var& x, const Var& mask, double value) {
  const Tensor values = operand("masked_fill", "x", x);
  check_dtype("masked_fill", "mask", operand("masked_fill", "mask", mask), DType::boolean);
  const Var constant = number_like("masked_fill", value, values);
  return named("masked_fill", [&] { return where(mask, constant, x); });
}

Var transpose(const Var& x, int a, int b) {
  const Shape shape = operand_shape("transpose", "x", x);
  return permuted("transpose", x,
                  AxisOrder::swapping(shape.rank(), axis_of("transpose", shape, a),
                                      axis_of("transpose", shape, b)));
}

Var squeeze(const Var& x, int axis) {
  const Shape shape = operand_shape("squeeze", "x", x);
  axis = axis_of("squeeze", shape, axis);
  if (shape[axis] != 1)
    refuse_shape("squeeze", "x", shape, fmt::format("extent 1 along axis {}", axis));
  std::vector<int64_t> extents;
  for (int i = 0; i < shape.rank(); ++i)
    if (i != axis) extents.push_back(shape[i]);
  return reshape(x, Shape(extents));
}

Var unsqueeze(const Var& x, int axis) {
  const Shape shape = operand_shape("unsqueeze", "x", x);
  const int place = new_axis("unsqueeze", shape, axis), rank = shape.rank() + 1;
  std::vector<int64_t> extents;
  extents.reserve(static_cast<size_t>(rank));
  for (int i = 0; i < rank; ++i) extents.push_back(i == place ? 1 : shape[i < place ? i : i - 1]);
  return reshape(x, Shape(extents));
}

Var stack(std::span<const Var> parts, int axis) {
  if (parts.empty()) throw ShapeError("stack: no parts; expected at least one tensor");
  const Tensor first = operand("stack", "the first part", parts[0]);
  const int place = new_axis("stack", first.shape(), axis);
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
  std::vector<int64_t> sizes(counts);
  sizes.push_back(shape.numel());
  if (!checked_product(sizes))
    raise<ShapeError>(
        "repeat: x has shape {}; expected counts of 0 or more, and at most {} elements", shape,
        largest_product);
  Var repeated = x;
  Shape whole = shape;
  int64_t before = 1;  // elements of the axes before
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t count = sizes[static_cast<size_t>(axis)];
    const int64_t rest = before > 0 ? repeated.shape().numel() / before : 0;
    const Var block = reshape(repeated, {before, 1, rest});
    whole = whole.with(axis, count * shape[axis]);
    repeated = reshape(broadcast_to(block, {before, count, rest}), whole);
    before *= whole[axis];
  }
  return repeated;
}

Var tril(const Var& x, int64_t diagonal) { return triangle("tril", x, diagonal, true); }
Var triu(const Var& x, int64_t diagonal) { return triangle("triu", x, diagonal, false); }

}  // namespace zg

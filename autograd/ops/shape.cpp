#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/strided.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// The numbers of concat and split as an array of int64_t: the axis, the number of parts, the begin
/// of each part along the axis, and the end of the last one.
class ConcatParts {
 public:
  explicit ConcatParts(int axis) : own_{axis, 0, 0} {}
  explicit ConcatParts(const void* numbers) : numbers_(static_cast<const int64_t*>(numbers)) {}

  void append(int64_t extent) {
    own_.push_back(own_.back() + extent);
    ++own_[1];
    numbers_ = own_.data();
  }
  int axis() const { return static_cast<int>(numbers_[0]); }
  int count() const { return static_cast<int>(numbers_[1]); }
  int64_t begin(int part) const { return numbers_[2 + part]; }
  int64_t end(int part) const { return numbers_[3 + part]; }
  int64_t whole() const { return own_.back(); }
  const void* data() const { return own_.data(); }
  size_t bytes() const { return own_.size() * sizeof(int64_t); }

 private:
  std::vector<int64_t> own_;
  const int64_t* numbers_ = nullptr;
};

ConcatParts parts_of(std::span<const StridedOperand> operands, int axis) {
  ConcatParts parts(axis);
  const Shape& first = operands[0].layout.shape;
  for (const auto& [tensor, layout] : operands) {
    check_alike("concat", "the first part", operands[0].source, "another", tensor);
    const Shape& shape = layout.shape;
    if (shape.rank() != first.rank() || shape.with(axis, first[axis]) != first)
      refuse_shape("concat", "a part", shape, fmt::format("{} but for axis {}", first, axis));
    parts.append(shape[axis]);
  }
  return parts;
}

void backward_of_concat(const void* numbers, const BackwardPass& pass) {
  const ConcatParts parts(numbers);
  for (int i = 0; i < parts.count(); ++i)
    if (pass.needs(i))
      pass.accumulate(i, block(pass.gradient_of_output(), parts.axis(), parts.begin(i),
                               parts.end(i), pass.stream()));
}

void composed_concat(const void* numbers, const ComposedPass& pass) {
  const ConcatParts parts(numbers);
  const Var dy = pass.gradient_of_output();
  for (int i = 0; i < parts.count(); ++i)
    if (pass.needs(i)) pass.accumulate(i, slice(dy, parts.axis(), parts.begin(i), parts.end(i)));
}

void composed_split(const void* numbers, const ComposedPass& pass) {
  const ConcatParts parts(numbers);
  const int64_t extent = pass.shape_of(0)[parts.axis()];
  for (int i = 0; i < parts.count(); ++i)
    if (const Var dy = pass.gradient_of_output(i))
      pass.accumulate(0, pad(dy, parts.axis(), parts.begin(i), extent - parts.end(i)));
}

void backward_of_split(const void* numbers, const BackwardPass& pass) {
  const ConcatParts parts(numbers);
  int first = 0;
  while (!pass.gradient_of_output(first)) ++first;
  const InputGradient dx(pass, 0, pass.gradient_of_output(first).dtype());
  fill_zero(dx.tensor(), pass.stream());
  for (int i = first; i < parts.count(); ++i)
    if (const Tensor& dy = pass.gradient_of_output(i))
      write_block(dy, dx.tensor(), parts.axis(), parts.begin(i), pass.stream());
  dx.accumulate();
}

}  // namespace

Var reshape(const Var& x, const Shape& shape) {
  const StridedOperand strided = strided_operand("reshape", "x", x);
  const Shape& of_x = strided.layout.shape;
  if (of_x.numel() != shape.numel())
    refuse_shape("reshape", "x", of_x,
                 fmt::format("the {} elements of {}, got {}", shape.numel(), shape, of_x.numel()));
  const std::optional<Layout> layout = strided.layout.reshaped(shape);
  const bool is_view = layout && !layout->is_contiguous();
  const Var y = record(
      "reshape", {x}, is_view ? Tensor() : x.value().view(shape), {}, of_x,
      [](const Shape& of_x, const BackwardPass& pass) {
        pass.accumulate(0, pass.gradient_of_output().view(of_x));
      },
      [](const Shape& of_x, const Var& dy) { return reshape(dy, of_x); });
  return is_view ? StridedView::attached("reshape", y, {strided.source, *layout}) : y;
}

Var reshape(const Var& x, std::initializer_list<int64_t> extents) {
  const int64_t numel = operand_shape("reshape", "x", x).numel();
  return reshape(x,
                 named("reshape", [&] { return Shape::with_inferred(extents, numel, "reshape"); }));
}

Var permute(const Var& x, std::initializer_list<int> axes) {
  const Shape shape = operand_shape("permute", "x", x);
  if (static_cast<int>(axes.size()) != shape.rank())
    refuse_shape("permute", "x", shape,
                 fmt::format("rank {}, one axis of x for each axis of y", axes.size()));
  AxisOrder order{.rank = shape.rank()};
  uint32_t seen = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int axis = order.order[i] = axis_of("permute", shape, axes.begin()[i]);
    if (seen & (1u << axis))
      raise<ShapeError>("permute: axis {} of {} is given twice; expected each axis once", axis,
                        shape);
    seen |= 1u << axis;
  }
  return permuted("permute", x, order);
}

Var slice(const Var& x, int axis, int64_t begin, int64_t end) {
  const StridedOperand values = strided_operand("slice", "x", x);
  const Shape& shape = values.layout.shape;
  axis = axis_of("slice", shape, axis);
  if (begin < 0 || end < begin || end > shape[axis])
    raise<ShapeError>(
        "slice: range {} to {} is outside axis {} of {}; expected 0 <= begin <= end <= {}; try "
        "slice(x, {{{{.begin = b, .end = e}}}}) for places from the end",
        begin, end, axis, shape, shape[axis]);
  struct Range {
    int axis;
    int64_t begin;
  };
  return record(
      "slice", {x}, block(values, axis, begin, end, values.source.device().compute()), {},
      Range{axis, begin},
      [](const Range& n, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        fill_zero(dx.tensor(), pass.stream());
        write_block(dy, dx.tensor(), n.axis, n.begin, pass.stream());
        dx.accumulate();
      },
      [](const Range& n, const ComposedPass& pass) {
        const Var dy = pass.gradient_of_output();
        const int64_t end = n.begin + dy.shape()[n.axis];
        pass.accumulate(0, pad(dy, n.axis, n.begin, pass.shape_of(0)[n.axis] - end));
      });
}

Var broadcast_to(const Var& x, const Shape& shape) {
  StridedOperand y = strided_operand("broadcast_to", "x", x);
  const Shape of_x = y.layout.shape;
  if (of_x == shape) return x;
  if (broadcast(of_x, shape, "broadcast_to") != shape)
    refuse_shape("broadcast_to", "x", of_x, "one that broadcasts to " + shape.str());
  y.layout = y.layout.broadcast_to(shape);
  const Tensor values = moved(x, y);
  const Var result = record(
      "broadcast_to", {x}, values, {}, of_x,
      [](const Shape& of_x, const BackwardPass& pass) {
        accumulate_reduced(pass, 0, pass.gradient_of_output(), of_x);
      },
      [](const Shape&, const Var& dy) { return dy; });
  return values ? result : StridedView::attached("broadcast_to", result, y);
}

Var concat(std::span<const Var> parts, int axis) {
  if (parts.empty()) throw ShapeError("concat: no parts; expected at least one tensor");
  std::vector<StridedOperand> operands;
  for (const Var& part : parts) operands.push_back(strided_operand("concat", "a part", part));
  const Shape& first = operands[0].layout.shape;
  axis = axis_of("concat", first, axis);
  const ConcatParts numbers = parts_of(operands, axis);
  const Tensor y = empty_like(operands[0].source, first.with(axis, numbers.whole()));
  for (int i = 0; i < numbers.count(); ++i)
    write_block(operands[static_cast<size_t>(i)], y, axis, numbers.begin(i), y.device().compute());
  return detail::record("concat", parts, {&y, 1}, {}, numbers.data(), numbers.bytes(),
                        backward_of_concat, composed_concat)[0];
}

std::vector<Var> split(const Var& x, std::span<const int64_t> sizes, int axis) {
  const StridedOperand values = strided_operand("split", "x", x);
  const Shape& shape = values.layout.shape;
  axis = axis_of("split", shape, axis);
  ConcatParts numbers(axis);
  for (int64_t size : sizes) {
    if (size < 0) raise<ShapeError>("split: a size of {}; expected 0 or more", size);
    numbers.append(size);
  }
  if (numbers.whole() != shape[axis])
    refuse_shape(
        "split", "x", shape,
        fmt::format("extent {} along axis {}, the sum of the sizes", numbers.whole(), axis));
  std::vector<Tensor> outputs;
  outputs.reserve(static_cast<size_t>(numbers.count()));
  for (int i = 0; i < numbers.count(); ++i)
    outputs.push_back(
        block(values, axis, numbers.begin(i), numbers.end(i), values.source.device().compute()));
  return detail::record("split", {&x, 1}, outputs, {}, numbers.data(), numbers.bytes(),
                        backward_of_split, composed_split);
}

}  // namespace zg

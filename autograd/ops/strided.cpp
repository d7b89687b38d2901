#include "zerograd/autograd/ops/strided.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "zerograd/autograd/tape_state.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

Layout Layout::contiguous(const Shape& shape) {
  return {.shape = shape, .strides = broadcast_strides(shape, shape)};
}

bool Layout::is_contiguous() const {
  const Strides expected = broadcast_strides(shape, shape);
  if (shape.numel() == 0) return true;
  for (size_t i = 0; i < static_cast<size_t>(shape.rank()); ++i)
    if (strides[i] != expected[i]) return false;
  return true;
}

Layout Layout::permuted(const AxisOrder& axes) const {
  Layout result = *this;
  for (int i = 0; i < axes.rank; ++i) {
    const int axis = axes.order[static_cast<size_t>(i)];
    result.shape = result.shape.with(i, shape[axis]);
    result.strides[static_cast<size_t>(i)] = strides[static_cast<size_t>(axis)];
  }
  return result;
}

Layout Layout::broadcast_to(const Shape& to) const {
  Layout result{.shape = to};
  std::copy_backward(strides.begin(), strides.begin() + shape.rank(),
                     result.strides.begin() + to.rank());
  return result;
}

std::optional<Layout> Layout::reshaped(const Shape& to) const {
  Layout result = contiguous(to);
  if (shape.numel() == 0) return result;
  // From the last axis: `left` elements of a run of evenly spaced ones are without an axis.
  int next = shape.rank() - 1;
  int64_t left = 1, stride = 0;
  for (int axis = to.rank() - 1; axis >= 0; --axis) {
    if (to[axis] == 1) continue;
    for (bool is_first = left == 1; next >= 0; --next) {
      if (shape[next] == 1) continue;
      const int64_t step = strides[static_cast<size_t>(next)];
      if (!std::exchange(is_first, false) && step != stride * left) break;
      if (left == 1) stride = step;
      left *= shape[next];
    }
    if (left % to[axis] != 0) return std::nullopt;
    result.strides[static_cast<size_t>(axis)] = stride;
    stride *= to[axis];
    left /= to[axis];
  }
  return result;
}

std::optional<AxisOrder> Layout::order_in_memory() const {
  AxisOrder axes{.rank = shape.rank()};
  const auto end = axes.order.begin() + axes.rank;
  const auto distance = [&](int axis) {
    return shape[axis] == 1 ? std::numeric_limits<int64_t>::max()
                            : strides[static_cast<size_t>(axis)];
  };
  std::iota(axes.order.begin(), end, 0);
  std::stable_sort(axes.order.begin(), end,
                   [&](int a, int b) { return distance(a) > distance(b); });
  return permuted(axes).is_contiguous() ? std::optional(axes) : std::nullopt;
}

Tensor StridedOperand::contiguous() const {
  const Shape& shape = layout.shape;
  if (layout.is_contiguous()) return source.flat(0, shape.numel()).view(shape);
  const Tensor y = empty_like(source, shape);
  copy_to(*this, y, y.device().compute());
  return y;
}

std::optional<Strides> StridedOperand::strides_in(const Shape& y) const {
  if (layout.is_contiguous()) return std::nullopt;
  return layout.broadcast_to(y).strides;
}

void copy_to(const StridedOperand& x, const Tensor& y, Stream& stream) {
  const auto& [shape, strides] = x.layout;
  kernels::strided_copy({.x = x.source,
                         .y = y,
                         .extents = shape,
                         .x_strides = strides,
                         .y_strides = broadcast_strides(shape, shape)},
                        stream);
}

StridedView::StridedView(const char* op, StridedOperand operand)
    : op_(op), operand_(std::move(operand)), version_(operand_.source.buffer()->version()) {}

void StridedView::check_unchanged() const {
  const Tensor& source = operand_.source;
  if (source.buffer()->version() != version_)
    raise<TapeError>(
        "{}: the operand {} {} was changed in place before the result {} was read; expected no "
        "change until then; copy the operand, or change it later",
        op_, source.shape(), source.dtype(), operand_.layout.shape);
}

Tensor StridedView::value() const {
  const std::lock_guard lock(mutex_);
  if (copy_) return copy_;
  check_unchanged();
  const PurposeScope purpose(operand_.source.device(), operand_.source.buffer()->purpose());
  copy_ = operand_.contiguous();
  version_of_copy_ = copy_.buffer()->version();
  return copy_;
}

StridedOperand StridedView::current() const {
  const std::lock_guard lock(mutex_);
  if (copy_ && (copy_.buffer()->version() != version_of_copy_ ||
                operand_.source.buffer()->version() != version_))
    return {copy_, Layout::contiguous(copy_.shape())};
  check_unchanged();
  return operand_;
}

bool StridedView::may_view(const Var& x, const Tensor& source) {
  if (!is_floating(source.dtype()) || x.parameter_ ||
      source.buffer()->purpose() != Purpose::activation)
    return false;
  return !x.tape_ || (!x.tape_->find_parameter(source).second && !x.tape_->find_gathered(source));
}

StridedOperand StridedView::operand_of(const Var& x) {
  if (x.view_) return x.view_->current();
  const Tensor values = x.value();
  return {values, Layout::contiguous(values.shape())};
}

Var StridedView::attached(const char* op, Var y, StridedOperand operand) {
  if (y.slot_ >= 0) {
    TapeState::Slot& slot = y.tape_->slots[static_cast<size_t>(y.slot_)];
    slot.shape = operand.layout.shape;
    slot.dtype = operand.source.dtype();
  }
  y.view_ = std::make_shared<StridedView>(op, std::move(operand));
  y.value_ = {};
  return y;
}

StridedOperand strided_operand(const char* op, const char* name, const Var& x) {
  if (!x) raise<ShapeError>("{}: {} is absent; expected a tensor", op, name);
  return StridedView::operand_of(x);
}

StridedOperand rows_operand(const char* op, const char* name, const Var& x) {
  StridedOperand operand = strided_operand(op, name, x);
  int64_t step = 0;
  for (int i = 0; i < operand.layout.shape.rank(); ++i)
    if (operand.layout.shape[i] > 1) step = operand.layout.strides[static_cast<size_t>(i)];
  if (step <= 1) return operand;
  return {x.value(), Layout::contiguous(operand.layout.shape)};
}

Var with_layout(const char* op, const Var& saved, const Layout& layout) {
  if (!saved || layout.is_contiguous()) return saved;
  return StridedView::attached(op, saved, {saved.value(), layout});
}

Tensor moved(const Var& x, const StridedOperand& y) {
  const bool is_copied = y.layout.is_contiguous() || !StridedView::may_view(x, y.source);
  return is_copied ? y.contiguous() : Tensor();
}

Tensor block(const StridedOperand& x, int axis, int64_t begin, int64_t end, Stream& stream) {
  if (x.layout.is_contiguous()) return block(x.contiguous(), axis, begin, end, stream);
  const Tensor part = empty_like(x.source, x.layout.shape.with(axis, end - begin));
  if (part.numel() == 0) return part;
  kernels::strided_copy({.x = x.source,
                         .y = part,
                         .extents = part.shape(),
                         .x_strides = x.layout.strides,
                         .y_strides = broadcast_strides(part.shape(), part.shape()),
                         .x_offset = begin * x.layout.strides[static_cast<size_t>(axis)]},
                        stream);
  return part;
}

void write_block(const StridedOperand& part, const Tensor& whole, int axis, int64_t begin,
                 Stream& stream) {
  const Shape& shape = part.layout.shape;
  if (part.layout.is_contiguous())
    return write_block(part.contiguous(), whole, axis, begin, stream);
  const Strides strides = Layout::contiguous(whole.shape()).strides;
  kernels::strided_copy({.x = part.source,
                         .y = whole,
                         .extents = shape,
                         .x_strides = part.layout.strides,
                         .y_strides = strides,
                         .y_offset = begin * strides[static_cast<size_t>(axis)]},
                        stream);
}

Var permuted(const char* op, const Var& x, const AxisOrder& axes) {
  StridedOperand y = strided_operand(op, "x", x);
  y.layout = y.layout.permuted(axes);
  const Tensor values = moved(x, y);
  const Var result = record(
      op, {x}, values, {}, axes,
      [](const AxisOrder& forward, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        const Layout order = Layout::contiguous(dy.shape()).permuted(forward.inverse());
        copy_to({dy, order}, dx.tensor(), pass.stream());
        dx.accumulate();
      },
      [](const AxisOrder& forward, const Var& dy) {
        return permuted("permute", dy, forward.inverse());
      });
  return values ? result : StridedView::attached(op, result, y);
}

}  // namespace zg

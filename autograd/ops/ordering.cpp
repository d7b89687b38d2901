#include <algorithm>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/text/format.h"

// Order along an axis, and scans: results that depend on the elements before or behind each place.
namespace zg {
namespace {

/// The places of the first `count` elements along an axis, counted from the front.
Tensor order_of(const Tensor& x, int axis, int64_t count, bool descending) {
  const Tensor y = Tensor::empty(x.shape().with(axis, count), DType::i64, x.device());
  kernels::sort({x, y, axis, descending}, x.device().compute());
  return y;
}

/// scan() of one tensor, for `op`.
Var scan_of(const char* op, const Var& x, int axis, Var (*combine)(const Var&, const Var&)) {
  axis = axis_of(op, x.shape(), axis);
  return scan({x}, axis, [&](std::span<const Var> a, std::span<const Var> b) {
    return std::vector<Var>{combine(a[0], b[0])};
  })[0];
}

/// argsort for `op`.
Tensor whole_order(const char* op, const Var& x, int axis, bool descending) {
  const bool flags = x && x.dtype() == DType::boolean;
  const Tensor values = number_operand(op, "x", flags ? cast(x, DType::i32) : x);
  axis = axis_of(op, values.shape(), axis);
  return order_of(values, axis, values.extent(axis), descending);
}

/// argmax for `op`.
Var place_of_largest(const char* op, const Var& x, int axis, bool keep_axis) {
  const Tensor values = number_operand(op, "x", x);
  axis = axis_of(op, values.shape(), axis);
  if (values.extent(axis) == 0) refuse_shape(op, "x", values.shape(), "an element along the axis");
  const Var y = without_gradient(op, {x}, order_of(values, axis, 1, /*descending=*/true));
  return keep_axis ? y : squeeze(y, axis);
}

/// The largest (smallest) elements so far.
PickedElements running_best(const char* op, const Var& x, int axis, bool smallest) {
  const Tensor values = number_operand(op, "x", x);
  axis = axis_of(op, values.shape(), axis);
  const Tensor keys = smallest ? in_reverse_order(detach(x)).value() : values;
  const Tensor y = empty_like(values);
  const Tensor places = Tensor::empty(values.shape(), DType::i64, values.device());
  kernels::scan({.op = ScanOp::place_of_largest, .x = keys, .y = places, .axis = axis, .values = y},
                values.device().compute());
  const Tensor found = smallest ? in_reverse_order(Var(y)).value() : y;
  return {recorded_gather(op, x, axis, places, found), places};
}

Var every_second(const Var& x, int axis, int64_t begin) {
  std::vector<AxisRange> ranges(static_cast<size_t>(x.shape().rank()));
  ranges[static_cast<size_t>(axis)] = {.begin = begin, .step = 2};
  return slice(x, ranges);
}

/// a[0], b[0], a[1], b[1], ... along an axis, along which both have one extent.
Var interleaved(const Var& a, const Var& b, int axis) {
  const Shape shape = a.shape();
  int64_t rows = 1;
  for (int i = 0; i <= axis; ++i) rows *= shape[i];
  const int64_t inner = shape.numel() / std::max<int64_t>(rows, 1);
  const Var left = reshape(a, {rows, inner}), right = reshape(b, {rows, inner});
  return reshape(concat({left, right}, 1), shape.with(axis, 2 * shape[axis]));
}

/// scan() by halves, as jax.lax.associative_scan: pairs are combined and scanned, which gives every
/// second result; one more call of combine gives the others.
std::vector<Var> scan_pairs(const std::vector<Var>& x, int axis, const Combine& combine) {
  const int64_t extent = x[0].shape()[axis], pairs = extent / 2, others = (extent - 1) / 2;
  if (extent < 2) return x;
  const auto combined = [&](const std::vector<Var>& a, const std::vector<Var>& b) {
    std::vector<Var> y = combine(a, b);
    if (y.size() != x.size())
      raise<ShapeError>("scan: combine returned {} tensors; expected {}, as many as an element has",
                        y.size(), x.size());
    for (size_t i = 0; i < y.size(); ++i)
      if (const Shape shape = operand("scan", "a result of combine", y[i]).shape();
          shape != a[i].shape())
        refuse_shape("scan", "a result of combine", shape, a[i].shape().str());
    return y;
  };
  std::vector<Var> even, odd, first, later;
  for (const Var& part : x) {
    even.push_back(every_second(part, axis, 0));
    odd.push_back(every_second(part, axis, 1));
    first.push_back(extent % 2 == 0 ? even.back() : slice(even.back(), axis, 0, pairs));
    if (others > 0) later.push_back(slice(even.back(), axis, 1, others + 1));
  }
  const std::vector<Var> seconds = scan_pairs(combined(first, odd), axis, combine);
  std::vector<Var> before, y;
  if (others > 0) {
    for (const Var& part : seconds)
      before.push_back(others == pairs ? part : slice(part, axis, 0, others));
    before = combined(before, later);  // of the elements at 2, 4, ...
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const Var start = slice(x[i], axis, 0, 1);
    if (extent % 2 == 1) {
      y.push_back(concat({start, interleaved(seconds[i], before[i], axis)}, axis));
    } else {
      const Var firsts = others == 0 ? start : concat({start, before[i]}, axis);
      y.push_back(interleaved(firsts, seconds[i], axis));
    }
  }
  return y;
}

}  // namespace

PickedElements sort(const Var& x, int axis, bool descending) {
  const Tensor indices = whole_order("sort", x, axis, descending);
  return {gather(x, axis, indices), indices};
}

Tensor argsort(const Var& x, int axis, bool descending) {
  return whole_order("argsort", x, axis, descending);
}

PickedElements topk(const Var& x, int64_t k, int axis, bool largest) {
  const Tensor values = number_operand("topk", "x", x);
  axis = axis_of("topk", values.shape(), axis);
  const int64_t extent = values.extent(axis);
  if (k < 0 || k > extent)
    raise<ConfigError>("topk: k is {}; expected 0 to {}, the elements of x {} along axis {}", k,
                       extent, values.shape(), axis);
  const Tensor indices = order_of(values, axis, k, largest);
  return {gather(x, axis, indices), indices};
}

Var argmax(const Var& x, int axis, bool keep_axis) {
  return place_of_largest("argmax", x, axis, keep_axis);
}

Var argmin(const Var& x, int axis, bool keep_axis) {
  number_operand("argmin", "x", x);
  return place_of_largest("argmin", in_reverse_order(detach(x)), axis, keep_axis);
}

Var cumsum(const Var& x, int axis) {
  if (x && x.dtype() == DType::boolean) return cumsum(cast(x, DType::i64), axis);
  const Tensor values = number_operand("cumsum", "x", x), y = empty_like(values);
  axis = axis_of("cumsum", values.shape(), axis);
  kernels::scan({ScanOp::sum, values, y, axis}, y.device().compute());
  return record(
      "cumsum", {x}, y, {}, axis,
      [](int along, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        kernels::scan({ScanOp::sum, dy, dx.tensor(), along, /*reversed=*/true}, pass.stream());
        dx.accumulate();
      },
      [](int along, const Var& dy) { return flip(cumsum(flip(dy, along), along), along); });
}

PickedElements cummax(const Var& x, int axis) { return running_best("cummax", x, axis, false); }
PickedElements cummin(const Var& x, int axis) { return running_best("cummin", x, axis, true); }

std::vector<Var> scan(std::span<const Var> x, int axis, const Combine& combine, bool reversed) {
  if (x.empty()) throw ShapeError("scan: no tensors; expected at least one");
  if (!combine) throw ConfigError("scan: combine is empty; expected a function of two elements");
  const Shape first = operand("scan", "the first tensor", x[0]).shape();
  axis = axis_of("scan", first, axis);
  std::vector<Var> parts;
  for (const Var& part : x) {
    const Shape shape = operand("scan", "a tensor", part).shape();
    if (shape.rank() <= axis || shape[axis] != first[axis])
      refuse_shape("scan", "a tensor", shape,
                   fmt::format("extent {} along axis {}", first[axis], axis));
    parts.push_back(reversed ? flip(part, axis) : part);
  }
  parts = scan_pairs(parts, axis, combine);
  if (reversed)
    for (Var& part : parts) part = flip(part, axis);
  return parts;
}

Var cumprod(const Var& x, int axis) {
  number_operand("cumprod", "x", x);
  return scan_of("cumprod", x, axis, mul);
}

Var logcumsumexp(const Var& x, int axis) {
  floating_operand("logcumsumexp", "x", x);
  return scan_of("logcumsumexp", x, axis, logaddexp);
}

}  // namespace zg

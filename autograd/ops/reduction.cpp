#include <limits>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/autograd/ops/strided.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/kernel.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// The reduced axes, and the shapes of the operand and of the result with and without them.
struct ReducedAxes {
  uint32_t axes = 0;
  Shape x, kept, y;

  /// Elements of the operand for each element of the result.
  int64_t elements() const {
    int64_t count = 1;
    for (int axis = 0; axis < x.rank(); ++axis)
      if (axes & (1u << axis)) count *= x[axis];
    return count;
  }
};

void check_elements(const char* op, const ReducedAxes& reduction) {
  if (reduction.elements() == 0) refuse_shape(op, "x", reduction.x, "an element along the axes");
}

ReducedAxes reduction_of(const char* op, const Shape& x, const Axes& axes, bool keep_axes) {
  ReducedAxes reduction{.x = x, .kept = x};
  auto reduce = [&](int axis) {
    if (reduction.axes & (1u << axis))
      raise<ShapeError>("{}: axis {} of {} is given twice; expected distinct axes", op, axis, x);
    reduction.axes |= 1u << axis;
    reduction.kept = reduction.kept.with(axis, 1);
  };
  for (int axis : axes) reduce(axis_of(op, x, axis));
  if (axes.size() == 0)
    for (int axis = 0; axis < x.rank(); ++axis) reduce(axis);

  std::vector<int64_t> left;
  for (int axis = 0; axis < x.rank(); ++axis)
    if (!(reduction.axes & (1u << axis))) left.push_back(x[axis]);
  reduction.y = keep_axes ? reduction.kept : Shape(left);
  return reduction;
}

Tensor reduced(ReduceOp op, const Tensor& x, const ReducedAxes& reduction) {
  const Tensor y = empty_like(x, reduction.y);
  kernels::reduce({op, x, y, reduction.axes}, x.device().compute());
  return y;
}

/// Sums of an operand with permuted axes are added in the order of its memory.
Tensor reduced(ReduceOp op, const Var& x, const StridedOperand& values, const ReducedAxes& n) {
  const Layout& layout = values.layout;
  const std::optional<AxisOrder> order = layout.order_in_memory();
  if (!order || layout.is_contiguous()) return reduced(op, x.value(), n);
  const Shape in_memory = layout.permuted(*order).shape;
  ReducedAxes m{.kept = in_memory};
  for (int i = 0; i < order->rank; ++i)
    if (n.axes & (1u << order->order[static_cast<size_t>(i)])) {
      m.axes |= 1u << i;
      m.kept = m.kept.with(i, 1);
    }
  m.y = m.kept;
  const Tensor y = reduced(op, values.source.flat(0, in_memory.numel()).view(in_memory), m);
  const Layout of_y = Layout::contiguous(m.kept).permuted(order->inverse());
  return StridedOperand{y, of_y}.contiguous().view(n.y);
}

/// Accumulates dy, repeated along the reduced axes, into the operand.
void accumulate_expanded(const BackwardPass& pass, const Tensor& dy, const ReducedAxes& n) {
  const InputGradient dx(pass, 0, dy.dtype());
  expand(dy.view(n.kept), dx.tensor(), pass.stream());
  dx.accumulate();
}

double share_of(const ReducedAxes& n) {
  return static_cast<double>(n.kept.numel()) / static_cast<double>(n.x.numel());
}

Var expanded(const Var& dy, const ReducedAxes& n) {
  const Var kept = reshape(dy, n.kept);
  return broadcast_to(kept, n.x);
}

/// 1 / (how many elements of x equal the maximum), times dy; in the accumulator dtype, because
/// counts above 256 do not fit bf16. `ones`: 1 where x is the maximum, else 0.
Tensor share_of_each_maximum(const Tensor& ones, const Tensor& dy, const ReducedAxes& n,
                             Stream& stream) {
  const DType sums = accumulator(dy.dtype());
  const Tensor count = Tensor::empty(n.kept, sums, dy.device());
  kernels::reduce({ReduceOp::sum, ones, count, n.axes}, stream);
  const Tensor share = Tensor::empty(n.kept, sums, dy.device());
  kernels::cast({dy, share}, stream);
  kernels::binary({BinaryOp::divide, share, count, share}, stream);
  const Tensor rounded = empty_like(dy, n.kept);
  kernels::cast({share, rounded}, stream);
  return rounded;
}

void backward_of_max(const ReducedAxes& n, const BackwardPass& pass) {
  const Tensor& dy = pass.gradient_of_output();
  const Tensor x = pass.saved(0), y = pass.saved(1).view(n.kept);
  const Tensor is_maximum = Tensor::empty(n.x, DType::boolean, dy.device());
  kernels::binary({BinaryOp::equal, x, y, is_maximum}, pass.stream());
  const InputGradient dx(pass, 0, dy.dtype());
  const Tensor& ones = dx.tensor();
  kernels::cast({is_maximum, ones}, pass.stream());
  const Tensor share = share_of_each_maximum(ones, dy, n, pass.stream());
  kernels::binary({BinaryOp::multiply, ones, share, ones}, pass.stream());
  dx.accumulate();
}

struct SoftmaxAxis {
  bool log;
  int axis;
};

Var softmax_of(const char* op, const Var& x, int axis, bool log) {
  const Tensor values = floating_operand(op, "x", x), y = empty_like(values);
  axis = axis_of(op, values.shape(), axis);
  kernels::softmax_forward({values, y, log, axis}, y.device().compute());
  return record(
      op, {x}, y, {y}, SoftmaxAxis{log, axis},
      [](const SoftmaxAxis& n, const BackwardPass& pass) {
        const Tensor y = pass.saved(0);
        const InputGradient dx(pass, 0, y.dtype());
        kernels::softmax_backward({y, pass.gradient_of_output(), dx.tensor(), n.log, n.axis},
                                  pass.stream());
        dx.accumulate();
      },
      [](const SoftmaxAxis& n, const ComposedPass& pass) {
        const Var y = pass.output(0, 0), dy = pass.gradient_of_output();
        const Var p = n.log ? exp(y) : y, terms = n.log ? dy : mul(dy, p);
        const Var total = mul(p, sum(terms, {n.axis}, true));
        pass.accumulate(0, sub(terms, total));
      });
}

/// sqrt(square), with a gradient of 0 at 0, where that of the root is infinite.
Var root_of(const Var& square) {
  const Var none = equal(square, 0.0);
  return where(none, 0.0, sqrt(where(none, 1.0, square)));
}

/// The product along an axis, which stays with extent 1.
Var product_along(Var y, int axis) {
  const Tensor values = y.value();
  int64_t extent = values.extent(axis);
  if (extent == 0) return add(sum(y, {axis}, /*keep_axes=*/true), 1.0);
  for (; extent > 1; extent = extent / 2 + extent % 2) {
    const int64_t half = extent / 2;
    const Var first = slice(y, axis, 0, half), second = slice(y, axis, half, 2 * half);
    const Var pairs = mul(first, second);
    y = extent % 2 == 0 ? pairs : concat({pairs, slice(y, axis, 2 * half, extent)}, axis);
  }
  return y;
}

}  // namespace

Var sum(const Var& x, const Axes& axes, bool keep_axes) {
  if (x && x.dtype() == DType::boolean) return sum(cast(x, DType::i64), axes, keep_axes);
  const StridedOperand values = strided_operand("sum", "x", x);
  check_numbers("sum", "x", values.source);
  const ReducedAxes reduction = reduction_of("sum", x.shape(), axes, keep_axes);
  return record(
      "sum", {x}, reduced(ReduceOp::sum, x, values, reduction), {}, reduction,
      [](const ReducedAxes& n, const BackwardPass& pass) {
        accumulate_expanded(pass, pass.gradient_of_output(), n);
      },
      [](const ReducedAxes& n, const Var& dy) { return expanded(dy, n); });
}

Var mean(const Var& x, const Axes& axes, bool keep_axes) {
  const StridedOperand values = strided_operand("mean", "x", x);
  check_floating("mean", "x", values.source.dtype());
  const ReducedAxes reduction = reduction_of("mean", x.shape(), axes, keep_axes);
  return record(
      "mean", {x}, reduced(ReduceOp::mean, x, values, reduction), {}, reduction,
      [](const ReducedAxes& n, const BackwardPass& pass) {
        accumulate_expanded(pass, scaled(pass.gradient_of_output(), share_of(n), pass.stream()), n);
      },
      [](const ReducedAxes& n, const Var& dy) { return expanded(mul(dy, share_of(n)), n); });
}

Var max(const Var& x, const Axes& axes, bool keep_axes) {
  const StridedOperand values = strided_operand("max", "x", x);
  check_numbers("max", "x", values.source);
  const ReducedAxes reduction = reduction_of("max", x.shape(), axes, keep_axes);
  check_elements("max", reduction);
  const Tensor y = reduced(ReduceOp::max, x, values, reduction);
  return record(
      "max", {x}, y, {x.needs_gradient() ? x.value() : Tensor(), y}, reduction,
      [](const ReducedAxes& n, const BackwardPass& pass) { backward_of_max(n, pass); },
      [](const ReducedAxes& n, const ComposedPass& pass) {
        const Var dy = cast(pass.gradient_of_output(), accumulator(pass.saved(0).dtype()));
        const Var largest = pass.saved(1).view(n.kept);
        const Var is_maximum = cast(equal(pass.saved(0), largest), dy.dtype());
        const Tensor count = reduced(ReduceOp::sum, is_maximum.value(),
                                     {.axes = n.axes, .x = n.x, .kept = n.kept, .y = n.kept});
        const Var share = div(is_maximum, count);
        pass.accumulate(0, mul(expanded(dy, n), share));
      });
}

// min, var and logsumexp are made of other ops. Their gradients are those of the parts.

Var min(const Var& x, const Axes& axes, bool keep_axes) {
  const Tensor values = number_operand("min", "x", x);
  check_elements("min", reduction_of("min", values.shape(), axes, keep_axes));
  const Var largest = max(in_reverse_order(x), axes, keep_axes);
  return in_reverse_order(largest);
}

Var var(const Var& x, const Axes& axes, int64_t correction, bool keep_axes) {
  const Tensor values = floating_operand("var", "x", x);
  const ReducedAxes reduction = reduction_of("var", values.shape(), axes, keep_axes);
  const int64_t count = reduction.elements();
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

Var logsumexp(const Var& x, const Axes& axes, bool keep_axes) {
  const Tensor values = floating_operand("logsumexp", "x", x);
  const ReducedAxes reduction = reduction_of("logsumexp", values.shape(), axes, keep_axes);
  check_elements("logsumexp", reduction);
  const Var largest = detach(max(x, axes, true));
  // An infinity minus itself is NaN.
  const Var shift =
      masked_fill(largest, equal(abs(largest), std::numeric_limits<double>::infinity()), 0.0);
  const Var terms = exp(sub(x, shift));
  const Var logarithm = log(sum(terms, axes, true));
  return reshape(add(logarithm, shift), reduction.y);
}

Var std(const Var& x, const Axes& axes, int64_t correction, bool keep_axes) {
  floating_operand("std", "x", x);
  const Var square = named("std", [&] { return var(x, axes, correction, keep_axes); });
  return root_of(square);
}

Var norm(const Var& x, double p, const Axes& axes, bool keep_axes) {
  const DType dtype = floating_operand("norm", "x", x).dtype();
  if (p != 1.0 && p != 2.0 && p != std::numeric_limits<double>::infinity())
    raise<ConfigError>("norm: p is {:g}; expected 1, 2 or infinity", p);
  return named("norm", [&] {
    if (p == 1.0) return sum(abs(x), axes, keep_axes);
    if (p > 2.0) return max(abs(x), axes, keep_axes);
    const Var squares = square(cast(x, accumulator(dtype)));
    return cast(root_of(sum(squares, axes, keep_axes)), dtype);
  });
}

Var prod(const Var& x, const Axes& axes, bool keep_axes) {
  const Tensor values = number_operand("prod", "x", x);
  const ReducedAxes reduction = reduction_of("prod", values.shape(), axes, keep_axes);
  Var y = x;
  for (int axis = 0; axis < values.shape().rank(); ++axis)
    if (reduction.axes & (1u << axis)) y = product_along(y, axis);
  return reshape(y, reduction.y);
}

Var softmax(const Var& x, int axis) { return softmax_of("softmax", x, axis, false); }
Var log_softmax(const Var& x, int axis) { return softmax_of("log_softmax", x, axis, true); }

}  // namespace zg

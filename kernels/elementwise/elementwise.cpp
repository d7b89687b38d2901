#include "zerograd/kernels/elementwise/elementwise.h"

#include <algorithm>

#include "zerograd/kernels/elementwise/dropout.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/checked_product.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

constexpr auto number = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64};

void check_numel(const char* op, const Tensor& x, const Tensor& y) {
  if (x.numel() != y.numel())
    raise<ShapeError>("{}: y {} does not have as many elements as x; expected {}, got {}", op,
                      y.shape(), x.numel(), y.numel());
}

/// The shape that an operand has in the op.
Shape shape_in(const char* op, const char* name, const Tensor& x, const ReadStrides& strides,
               const Shape& y) {
  if (!strides) return x.shape();
  check_present(op, name, x);
  int64_t last = 0, step = 0, least = 0;
  for (int axis = 0; axis < y.rank(); ++axis) {
    if (y[axis] <= 1) continue;
    step = (*strides)[static_cast<size_t>(axis)];
    least = std::min(least, step);
    last += (y[axis] - 1) * step;
  }
  if (y.numel() > 0 && (least < 0 || step > 1 || last >= x.numel()))
    raise<ShapeError>(
        "{}: {} of {} elements is read up to element {} in steps of {}; expected its own elements "
        "in steps of 0 or 1, and no stride below 0",
        op, name, x.numel(), last, step);
  return y;
}

/// The broadcast shape of a and b; they may be strided.
template <class Args>
Shape shape_of_both(const char* op, const Args& args, const Shape& y) {
  return broadcast(shape_in(op, "a", args.a, args.a_strides, y),
                   shape_in(op, "b", args.b, args.b_strides, y), op);
}

}  // namespace

void validate(const Unary& args) {
  check_dtype("unary", "x", args.x, floating);
  check_like("unary", "y", args.y, args.x);
}

void validate(const UnaryBackward& args) {
  const char* op = "unary_backward";
  check_dtype(op, "dy", args.dy, floating);
  if (reads_result(args.op))
    check_like(op, "y", args.y, args.dy);
  else
    check_like(op, "x", args.x, args.dy);
  check_like(op, "dx", args.dx, args.dy);
}

void validate(const Binary& args) {
  const char* op = "binary";
  if (is_floating_only(args.op))
    check_dtype(op, "a", args.a, floating);
  else
    check_dtype(op, "a", args.a, number);
  check_dtype(op, "b", args.b, args.a.dtype());
  check_shape(op, "y", args.y, shape_of_both(op, args, args.y.shape()));
  check_dtype(op, "y", args.y, is_comparison(args.op) ? DType::boolean : args.a.dtype());
}

void validate(const BinaryBackward& args) {
  const char* op = "binary_backward";
  if (is_comparison(args.op))
    throw Unsupported("binary_backward: comparisons have no gradient; expected an arithmetic op");
  check_dtype(op, "a", args.a, floating);
  check_dtype(op, "b", args.b, args.a.dtype());
  check_shape(op, "dy", args.dy, shape_of_both(op, args, args.dy.shape()));
  check_dtype(op, "dy", args.dy, args.a.dtype());
  if (args.da) check_like(op, "da", args.da, args.dy);
  if (args.db) check_like(op, "db", args.db, args.dy);
}

void validate(const Where& args) {
  const char* op = "where";
  check_dtype(op, "condition", args.condition, DType::boolean);
  check_present(op, "a", args.a);
  check_dtype(op, "b", args.b, args.a.dtype());
  const Shape values = shape_of_both(op, args, args.y.shape());
  check_shape(op, "y", args.y, broadcast(args.condition.shape(), values, op));
  check_dtype(op, "y", args.y, args.a.dtype());
}

void validate(const Axpby& args) {
  check_dtype("axpby", "x", args.x, floating);
  check_dtype("axpby", "y", args.y, floating);
  check_numel("axpby", args.x, args.y);
}

void validate(const Cast& args) {
  check_present("cast", "x", args.x);
  check_present("cast", "y", args.y);
  check_numel("cast", args.x, args.y);
}

ZG_KERNEL(Unary, unary)
ZG_KERNEL(UnaryBackward, unary_backward)
ZG_KERNEL(Binary, binary)
ZG_KERNEL(BinaryBackward, binary_backward)
ZG_KERNEL(Where, where)
ZG_KERNEL(Axpby, axpby)
ZG_KERNEL(Cast, cast)

DropoutSlice dropout_slice(const char* op, float probability, const Shape& shape,
                           const DropoutKey& key) {
  if (!(probability >= 0.0f && probability < 1.0f))
    raise<ConfigError>("{}: dropout probability is {:f}; expected a number in [0, 1)", op,
                       probability);
  int64_t outer = 1, extent = 1, inner = 1;
  for (int axis = 1; axis < shape.rank(); ++axis)
    (axis < key.axis ? outer : axis == key.axis ? extent : inner) *= shape[axis];
  const int64_t whole = key.whole > 0 ? key.whole : extent;
  if (key.axis < 1 || key.begin < 0 || key.begin > whole - extent ||
      (key.whole > 0 && key.axis >= shape.rank()))
    raise<ShapeError>(
        "{}: key.axis {}, key.begin {} and key.whole {} do not fit shape {}; expected a slice of "
        "an axis after axis 0",
        op, key.axis, key.begin, key.whole, shape);
  const int64_t elements = checked_product({outer, whole, inner}, op);
  if (probability > 0.0f && elements > max_dropout_elements)
    raise<ShapeError>(
        "{}: a sample has {} elements; expected at most 2^34, because one word of a Philox "
        "counter, of 32 bits, numbers blocks of four elements",
        op, elements);
  const int64_t span = extent == whole ? outer * inner : inner;  // a whole sample is one row
  return {.first = key.begin * inner, .row = extent * span, .whole_row = whole * span};
}

void validate(const Dropout& a) {
  const char* op = "dropout";
  check_dtype(op, "x", a.x, floating);
  if (a.x.shape().rank() == 0)
    throw ShapeError("dropout: x is a scalar; expected [samples, elements]");
  check_dtype(op, "y", a.y, a.x.dtype());
  check_shape(op, "y", a.y, a.x.shape());
  if (a.residual) {
    check_dtype(op, "residual", a.residual, a.x.dtype());
    check_shape(op, "residual", a.residual, a.x.shape());
  }
  dropout_slice(op, a.probability, a.x.shape(), a.key);
}

ZG_KERNEL(Dropout, dropout)

const char* name_of(Gate form) {
  constexpr const char* names[] = {"silu", "gelu_tanh", "gelu_erf"};
  return names[static_cast<size_t>(form)];
}

void validate(const GatedForward& a) {
  const char* op = "gated_forward";
  check_dtype(op, "gate", a.gate, floating);
  check_like(op, "up", a.up, a.gate);
  check_like(op, "y", a.y, a.gate);
}

void validate(const GatedBackward& a) {
  const char* op = "gated_backward";
  check_dtype(op, "gate", a.gate, floating);
  check_like(op, "up", a.up, a.gate);
  check_like(op, "dy", a.dy, a.gate);
  check_like(op, "dgate", a.dgate, a.gate);
  check_like(op, "dup", a.dup, a.gate);
}

ZG_KERNEL(GatedForward, gated_forward)
ZG_KERNEL(GatedBackward, gated_backward)

namespace {

void check_form(const char* op, Activation activation) {
  if (activation != Activation::gelu_tanh && activation != Activation::gelu_erf)
    throw ConfigError(std::string(op) +
                      ": activation is none; expected Activation::gelu_tanh or gelu_erf");
}

}  // namespace

void validate(const GeluForward& a) {
  const char* op = "gelu_forward";
  check_dtype(op, "x", a.x, floating);
  check_like(op, "y", a.y, a.x);
  check_form(op, a.activation);
}

void validate(const GeluBackward& a) {
  const char* op = "gelu_backward";
  check_dtype(op, "x", a.x, floating);
  check_like(op, "dy", a.dy, a.x);
  check_like(op, "dx", a.dx, a.x);
  if (a.y) check_like(op, "y", a.y, a.x);
  check_form(op, a.activation);
}

ZG_KERNEL(GeluForward, gelu_forward)
ZG_KERNEL(GeluBackward, gelu_backward)

}  // namespace zg

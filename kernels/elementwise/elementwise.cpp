#include "zerograd/kernels/elementwise/elementwise.h"

#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

constexpr auto number = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64};

void check_numel(const char* op, const Tensor& x, const Tensor& y) {
  if (x.numel() != y.numel())
    raise<ShapeError>("{}: y {} does not have as many elements as x; expected {}, got {}", op,
                      y.shape(), x.numel(), y.numel());
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
  if (args.op == BinaryOp::power)
    check_dtype(op, "a", args.a, floating);
  else
    check_dtype(op, "a", args.a, number);
  check_dtype(op, "b", args.b, args.a.dtype());
  check_shape(op, "y", args.y, broadcast(args.a.shape(), args.b.shape(), op));
  check_dtype(op, "y", args.y, is_comparison(args.op) ? DType::boolean : args.a.dtype());
}

void validate(const BinaryBackward& args) {
  const char* op = "binary_backward";
  if (is_comparison(args.op))
    throw Unsupported("binary_backward: comparisons have no gradient; expected an arithmetic op");
  check_dtype(op, "a", args.a, floating);
  check_dtype(op, "b", args.b, args.a.dtype());
  check_shape(op, "dy", args.dy, broadcast(args.a.shape(), args.b.shape(), op));
  check_dtype(op, "dy", args.dy, args.a.dtype());
  if (args.da) check_like(op, "da", args.da, args.dy);
  if (args.db) check_like(op, "db", args.db, args.dy);
}

void validate(const Where& args) {
  const char* op = "where";
  check_dtype(op, "condition", args.condition, DType::boolean);
  check_present(op, "a", args.a);
  check_dtype(op, "b", args.b, args.a.dtype());
  const Shape values = broadcast(args.a.shape(), args.b.shape(), op);
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

}  // namespace zg

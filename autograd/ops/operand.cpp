#include "zerograd/autograd/ops/operand.h"

#include "zerograd/kernels/check.h"
#include "zerograd/runtime/error.h"

namespace zg {

Tensor operand(const char* op, const char* name, const Var& x) {
  if (!x) throw ShapeError(std::string(op) + ": " + name + " is absent; expected a tensor");
  return x.value();
}

void check_index(const char* op, const char* name, const Tensor& index) {
  check_dtype(op, name, index, {DType::i32, DType::i64});
}

Tensor floating_operand(const char* op, const char* name, const Var& x) {
  const Tensor values = operand(op, name, x);
  if (!is_floating(values.dtype()))
    throw DTypeError(std::string(op) + ": " + name + " holds " + name_of(values.dtype()) +
                     "; expected f64, f32, bf16 or f16; try cast(" + name + ", DType::f32)");
  return values;
}

void check_alike(const char* op, const char* name_a, const Tensor& a, const char* name_b,
                 const Tensor& b) {
  if (a.dtype() != b.dtype())
    throw DTypeError(std::string(op) + ": " + name_a + " holds " + name_of(a.dtype()) + " and " +
                     name_b + " holds " + name_of(b.dtype()) + "; expected one dtype; try cast");
  check_device(op, {&a, &b});
}

void check_rank(const char* op, const char* name, const Tensor& x, int rank) {
  if (x.shape().rank() < rank)
    refuse_shape(op, name, x.shape(), "rank " + std::to_string(rank) + " or more");
}

void refuse_shape(const char* op, const char* name, const Shape& got, const std::string& expected) {
  throw ShapeError(std::string(op) + ": " + name + " has shape " + got.str() + "; expected " +
                   expected);
}

int axis_of(const char* op, const Shape& shape, int axis) {
  const int rank = shape.rank();
  if (axis < -rank || axis >= rank)
    throw ShapeError(std::string(op) + ": axis " + std::to_string(axis) + " is outside " +
                     shape.str() + "; expected " +
                     (rank == 0 ? std::string("no axis of a scalar")
                                : std::to_string(-rank) + " to " + std::to_string(rank - 1)));
  return axis < 0 ? axis + rank : axis;
}

Tensor empty_like(const Tensor& x) { return empty_like(x, x.shape()); }

Tensor empty_like(const Tensor& x, const Shape& shape) {
  return Tensor::empty(shape, x.dtype(), x.device());
}

Shape rows_of(const Shape& shape) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return {rows, shape.rank() == 0 ? 1 : shape[-1]};
}

}  // namespace zg

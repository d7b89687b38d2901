#pragma once

#include <optional>

#include "zerograd/kernels/kernel.h"

namespace zg {

enum class UnaryOp : uint8_t {
  negate,
  exp,
  log,
  sqrt,
  tanh,
  sigmoid,
  relu,
  silu,
  abs,
  reciprocal,
  sin,
  cos,
  erf,
  log1p,
  floor,
  ceil,
  round,
  sign,
  square,
  expm1,
  log2,
  softplus,
  hard_swish,
  tan,
  asin,
  acos,
  atan,
  sinh,
  cosh,
  clamp,
  elu,
  leaky_relu
};
/// The number of values of UnaryOp, of which leaky_relu is the last.
constexpr size_t unary_op_count = static_cast<size_t>(UnaryOp::leaky_relu) + 1;

/// Whether the derivative is computed from the forward result; otherwise it is computed from x.
constexpr bool reads_result(UnaryOp op) {
  return op == UnaryOp::exp || op == UnaryOp::sqrt || op == UnaryOp::tanh ||
         op == UnaryOp::sigmoid || op == UnaryOp::tan;
}

/// y = op(x) element by element. clamp limits x to [p, q]; elu and leaky_relu multiply by p where
/// x <= 0: e^x - 1 or x. Other ops have no p and q.
struct Unary {
  UnaryOp op;
  Tensor x;  ///< f64 | f32 | bf16 | f16
  Tensor y;  ///< out, like x; may be x
  double p = 0.0, q = 0.0;
};
/// dx = dy * op'(x). Of x and the forward result y only the one that reads_result() names is
/// needed; the other may be absent. The slope of relu and abs at 0 is 0, that of floor, ceil, round
/// and sign everywhere; that of clamp is 1 between p and q and 0 at both. p and q: see Unary.
struct UnaryBackward {
  UnaryOp op;
  Tensor x, y, dy;
  Tensor dx;  ///< out; may be dy
  double p = 0.0, q = 0.0;
};

enum class BinaryOp : uint8_t {
  add,
  subtract,
  multiply,
  divide,
  power,
  maximum,
  minimum,
  logaddexp,
  remainder,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal
};
constexpr bool is_comparison(BinaryOp op) { return op >= BinaryOp::equal; }
/// Whether integers lack the op.
constexpr bool is_floating_only(BinaryOp op) {
  return op == BinaryOp::power || op == BinaryOp::logaddexp;
}
/// Whether integers refuse a divisor of 0.
constexpr bool divides(BinaryOp op) { return op == BinaryOp::divide || op == BinaryOp::remainder; }

/// With which strides an operand is read, in elements: one for each axis of y, 0 or more. Without
/// them the operand's shape is broadcast to y's. Along the last axis of y with an extent above 1
/// the stride is 0 or 1.
using ReadStrides = std::optional<Strides>;
inline Strides strides_of(const Tensor& x, const ReadStrides& strides, const Shape& y) {
  return strides ? *strides : broadcast_strides(x.shape(), y);
}

/// y = a op b with broadcasting (axes aligned at the end, extents equal or 1). If an operand of
/// maximum or minimum is NaN, so is the result. Integers wrap around, also the least one divided by
/// -1; their division truncates; their remainder has the sign of the divisor. A divisor of 0 is an
/// error that names its position: a ConfigError on the CPU, a ShapeError of the next synchronize()
/// on an accelerator.
struct Binary {
  BinaryOp op;
  Tensor a, b;  ///< same dtype: f64 | f32 | bf16 | f16 | i32 | i64 (not is_floating_only)
  Tensor y;     ///< out, the broadcast shape; a's dtype, boolean for comparisons; may be an operand
                ///< of its shape and dtype
  ReadStrides a_strides = {}, b_strides = {};
};

/// da = dy * d(a op b)/da and db likewise, in the broadcast shape (the caller sums them over the
/// axes along which an operand was broadcast). At a tie maximum and minimum give each side half, as
/// PyTorch does.
struct BinaryBackward {
  BinaryOp op;
  Tensor a, b, dy;
  Tensor da, db;  ///< out, dy's shape; either may be absent
  ReadStrides a_strides = {}, b_strides = {};
};

/// y = condition ? a : b with broadcasting.
struct Where {
  Tensor condition;  ///< boolean
  Tensor a, b;       ///< same dtype, any
  Tensor y;
  ReadStrides a_strides = {}, b_strides = {};
};

/// y = a * x + b * y, computed in f32 (f64 if x or y is f64); y may have another floating dtype
/// than x. With b = 0, y is not read and may be uninitialised.
struct Axpby {
  Tensor x, y;  ///< equal numel; floating
  double a = 1.0, b = 1.0;
};

/// y = x converted. From floats to integers it truncates, saturates out of range, and converts NaN
/// to 0. Integers wrap around in a narrower type. A boolean is true unless x is 0.
struct Cast {
  Tensor x, y;  ///< equal numel, any dtypes
};

ZG_API void validate(const Unary&);
ZG_API void validate(const UnaryBackward&);
ZG_API void validate(const Binary&);
ZG_API void validate(const BinaryBackward&);
ZG_API void validate(const Where&);
ZG_API void validate(const Axpby&);
ZG_API void validate(const Cast&);
inline std::vector<Operand> operands(const Unary& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const UnaryBackward& a) {
  return {{"x", a.x}, {"y", a.y}, {"dy", a.dy}, {"dx", a.dx, Operand::out}};
}
inline std::vector<Operand> operands(const Binary& a) {
  return {{"a", a.a}, {"b", a.b}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const BinaryBackward& a) {
  return {
      {"a", a.a}, {"b", a.b}, {"dy", a.dy}, {"da", a.da, Operand::out}, {"db", a.db, Operand::out}};
}
inline std::vector<Operand> operands(const Where& a) {
  return {{"condition", a.condition}, {"a", a.a}, {"b", a.b}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const Axpby& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const Cast& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}

/// Unless b is 0, y is read, too.
inline void adjust_count(OpCount& count, const Axpby& a) {
  if (a.b != 0.0 && a.x.raw() != a.y.raw()) count.bytes += a.y.bytes();
}

namespace kernels {
extern ZG_API Kernel<Unary> unary;
extern ZG_API Kernel<UnaryBackward> unary_backward;
extern ZG_API Kernel<Binary> binary;
extern ZG_API Kernel<BinaryBackward> binary_backward;
extern ZG_API Kernel<Where> where;
extern ZG_API Kernel<Axpby> axpby;
extern ZG_API Kernel<Cast> cast;
}  // namespace kernels

}  // namespace zg

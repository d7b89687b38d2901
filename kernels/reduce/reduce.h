#pragma once

#include "zerograd/kernels/kernel.h"

namespace zg {

enum class ReduceOp : uint8_t { sum, mean, max };

/// y = op of x over the axes whose bit is set in `axes` (bit i: axis i). Sums are accumulated in
/// the accumulator dtype over short blocks, and the blocks are added in f64, in an order that
/// depends only on the shape. The sum of no elements is 0, their mean NaN, their maximum a
/// ShapeError. The maximum of elements with a NaN is NaN.
struct Reduce {
  ReduceOp op;
  Tensor x;  ///< f64 | f32 | bf16 | f16 (sum: also i32, i64)
  Tensor y;  ///< out: x's shape with the reduced axes of extent 1 or removed; x's or the
             ///< accumulator dtype (for i32: i32 or i64; integers wrap around)
  uint32_t axes;
  /// CPU: a reduction of leading axes adds in the order that it has for rows of so many elements,
  /// so that it does not depend on how many of the columns x has; 0: of as many as x has.
  int64_t columns = 0;
};
/// y = index of the first largest element along `axis`. NaN counts as largest.
struct ArgMax {
  Tensor x;  ///< floating
  Tensor y;  ///< i64 out: x's shape without `axis` (or with extent 1)
  int axis;
};
/// y = indices of the first elements along `axis` in falling order (rising, if not `largest`);
/// equal elements in the order of their indices. NaN counts as largest. Each result reads x once,
/// so the time grows with their number; there is no scratch.
struct TopK {
  Tensor x;  ///< floating
  Tensor y;  ///< i64 out: x's shape, with at most as many elements along `axis`
  int axis;
  bool largest = true;
};
/// y = softmax or log_softmax over the last axis. x, y [..., C].
struct SoftmaxForward {
  Tensor x;  ///< f64 | f32 | bf16 | f16
  Tensor y;  ///< out, like x; may be x
  bool log = false;
};
struct SoftmaxBackward {
  Tensor y, dy;  ///< y: the forward result
  Tensor dx;     ///< out; may be dy
  bool log = false;
};

ZG_API void validate(const Reduce&);
ZG_API void validate(const ArgMax&);
ZG_API void validate(const TopK&);
ZG_API void validate(const SoftmaxForward&);
ZG_API void validate(const SoftmaxBackward&);
inline std::vector<Operand> operands(const Reduce& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const ArgMax& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const TopK& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const SoftmaxForward& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const SoftmaxBackward& a) {
  return {{"y", a.y}, {"dy", a.dy}, {"dx", a.dx, Operand::out}};
}

namespace kernels {
extern ZG_API Kernel<Reduce> reduce;
extern ZG_API Kernel<ArgMax> argmax;
extern ZG_API Kernel<TopK> top_k;
extern ZG_API Kernel<SoftmaxForward> softmax_forward;
extern ZG_API Kernel<SoftmaxBackward> softmax_backward;
}  // namespace kernels

}  // namespace zg

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
  Tensor x;  ///< f64 | f32 | bf16 | f16 (sum, max: also i32, i64)
  Tensor y;  ///< out: x's shape with the reduced axes of extent 1 or removed; x's or the
             ///< accumulator dtype (for i32: i32 or i64; integers wrap around)
  uint32_t axes;
  /// CPU: a reduction of leading axes adds in the order that it has for rows of so many elements,
  /// so that it does not depend on how many of the columns x has; 0: of as many as x has.
  int64_t columns = 0;
};
/// y = indices of the first elements along `axis` in rising order (falling, if `descending`); equal
/// elements in the order of their indices. NaN counts as largest. On a CPU by radix, in time linear
/// in x; on accelerators by a bitonic network. Few elements are chosen in one pass over x.
struct Sort {
  Tensor x;  ///< floating, i32 or i64; at most 2^32 elements along `axis`
  Tensor y;  ///< i64 out: x's shape, with at most as many elements along `axis`
  int axis;
  bool descending = false;
};
enum class ScanOp : uint8_t { sum, place_of_largest };
/// y[i] = op of x[0], ... x[i] along `axis`. A sum is accumulated as by Reduce in an order that
/// depends only on the shape, and rounded once. The place of the largest element along `axis` is
/// the last one of equal elements; NaN counts as largest.
struct Scan {
  ScanOp op;
  Tensor x;  ///< floating, i32 or i64; sums of integers wrap around
  Tensor y;  ///< out, x's shape; a sum has x's dtype, a place i64
  int axis;
  bool reversed = false;  ///< x[i] to x[extent - 1] in place of x[0] to x[i]
  Tensor values = {};     ///< out, like x: the elements at the places; absent for sums

  bool finds_places() const { return op == ScanOp::place_of_largest; }
};
/// y = softmax or log_softmax along an axis, in an order that depends only on its extent.
struct SoftmaxForward {
  Tensor x;  ///< f64 | f32 | bf16 | f16
  Tensor y;  ///< out, like x; may be x
  bool log = false;
  int axis = -1;
};
struct SoftmaxBackward {
  Tensor y, dy;  ///< y: the forward result
  Tensor dx;     ///< out; may be dy
  bool log = false;
  int axis = -1;
};

ZG_API void validate(const Reduce&);
ZG_API void validate(const Sort&);
ZG_API void validate(const Scan&);
ZG_API void validate(const SoftmaxForward&);
ZG_API void validate(const SoftmaxBackward&);
inline std::vector<Operand> operands(const Reduce& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const Sort& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const Scan& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}, {"values", a.values, Operand::out}};
}
inline std::vector<Operand> operands(const SoftmaxForward& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const SoftmaxBackward& a) {
  return {{"y", a.y}, {"dy", a.dy}, {"dx", a.dx, Operand::out}};
}

namespace kernels {
extern ZG_API Kernel<Reduce> reduce;
extern ZG_API Kernel<Sort> sort;
extern ZG_API Kernel<Scan> scan;
extern ZG_API Kernel<SoftmaxForward> softmax_forward;
extern ZG_API Kernel<SoftmaxBackward> softmax_backward;
}  // namespace kernels

}  // namespace zg

#pragma once

#include "kernels/kernel.h"

namespace zg {

enum class ReduceOp : uint8_t { sum, mean, max };

/// y = op of x over the axes whose bit is set in `axes` (bit i: axis i). Sums are kept in the
/// accumulator dtype, in an order fixed by the shape.
struct Reduce {
  ReduceOp op;
  Tensor x;  ///< f64 | f32 | bf16 | f16 (sum: also i32, i64)
  Tensor y;  ///< out: x's shape with the reduced axes of extent 1 or gone; x's or accumulator dtype
  uint32_t axes;
};
/// y = index of the first largest element along `axis`. NaN counts as largest.
struct ArgMax {
  Tensor x;  ///< floating
  Tensor y;  ///< i64 out: x's shape without `axis` (or with extent 1)
  int axis;
};
/// y = softmax or log_softmax over the last axis. x, y [N, C].
struct SoftmaxForward {
  Tensor x, y;
  bool log = false;
};
struct SoftmaxBackward {
  Tensor y, dy;  ///< y: the forward result
  Tensor dx;     ///< out; may be dy
  bool log = false;
};

ZG_API void validate(const Reduce&);
ZG_API void validate(const ArgMax&);
ZG_API void validate(const SoftmaxForward&);
ZG_API void validate(const SoftmaxBackward&);

namespace kernels {
extern ZG_API Kernel<Reduce> reduce;
extern ZG_API Kernel<ArgMax> argmax;
extern ZG_API Kernel<SoftmaxForward> softmax_forward;
extern ZG_API Kernel<SoftmaxBackward> softmax_backward;
}  // namespace kernels

}  // namespace zg

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/movement.h"
#include "zerograd/autograd/ops/operand.h"
#include "zerograd/kernels/reduce/reduce.h"

namespace zg {
namespace {

Var softmax_of_last(const char* op, const Var& x, const Tensor& values, bool log) {
  const Shape rows = rows_of(values.shape());
  const Tensor y = empty_like(values);
  kernels::softmax_forward({values.view(rows), y.view(rows), log}, y.device().compute());
  return record(op, {x}, y, {y}, log, [](bool of_log, const BackwardPass& pass) {
    const Tensor y = pass.saved(0);
    const Shape rows = rows_of(y.shape());
    const InputGradient dx(pass, 0, y.dtype());
    kernels::softmax_backward(
        {y.view(rows), pass.gradient_of_output().view(rows), dx.view(rows), of_log}, pass.stream());
    dx.accumulate();
  });
}

/// The kernel takes the last axis; any other trades places with it and back.
Var softmax_of(const char* op, const Var& x, int axis, bool log) {
  const Tensor values = floating_operand(op, "x", x);
  const AxisOrder swap =
      AxisOrder::swapping(values.shape().rank(), axis_of(op, values.shape(), axis), -1);
  if (swap.keeps_place()) return softmax_of_last(op, x, values, log);
  const Var moved = permuted(op, x, swap);
  return permuted(op, softmax_of_last(op, moved, moved.value(), log), swap);
}

}  // namespace

Var softmax(const Var& x, int axis) { return softmax_of("softmax", x, axis, false); }
Var log_softmax(const Var& x, int axis) { return softmax_of("log_softmax", x, axis, true); }

}  // namespace zg

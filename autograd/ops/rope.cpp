#include "zerograd/kernels/attention/rope.h"

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/runtime/error.h"

namespace zg {
namespace {

struct Turn {
  int64_t heads, first_position;
};

void turn(const Turn& n, const Tensor& x, const Tensor& y, const Tensor& table,
          const Tensor& positions, bool backward, Stream& stream) {
  kernels::rope({.x = x,
                 .y = y,
                 .table = table,
                 .positions = positions,
                 .heads = n.heads,
                 .first_position = n.first_position,
                 .backward = backward},
                stream);
}

Var turned(const Var& x, const Turn& n, const Tensor& table, const Tensor& positions) {
  const Tensor values = floating_operand("rope", "x", x);
  const Tensor y = empty_like(values);
  turn(n, values, y, table, positions, /*backward=*/false, y.device().compute());
  return record(
      "rope", {x}, y, {table, positions}, n, [](const Turn& of, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        if (!dx) return;
        turn(of, dy, dx.tensor(), pass.saved(0), pass.saved(1), /*backward=*/true, pass.stream());
        dx.accumulate();
      });
}

}  // namespace

Var rope(const Var& x, int64_t heads, const Tensor& table, int64_t first_position) {
  return turned(x, {heads, first_position}, table, {});
}

Var rope(const Var& x, int64_t heads, const Tensor& table, const Tensor& positions) {
  if (!positions) throw ShapeError("rope: positions is absent; expected an i32 tensor [B, T]");
  return turned(x, {heads, 0}, table, positions);
}

}  // namespace zg

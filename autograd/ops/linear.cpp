#include "autograd/ops.h"
#include "autograd/ops/gradient.h"
#include "autograd/ops/operand.h"
#include "kernels/gelu.h"
#include "kernels/reduce.h"

namespace zg {
namespace {

/// x [rows, in], weight [out, in].
struct Linear {
  int64_t rows = 0, in = 0, out = 0;
  Activation activation = Activation::none;
};

void check_operands(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_rank("linear", "x", x, 1);
  check_alike("linear", "x", x, "weight", weight);
  if (weight.shape().rank() != 2)
    refuse_shape("linear", "weight", weight.shape(), "rank 2: [out, in]");
  if (x.extent(-1) != weight.extent(1))
    throw ShapeError("linear: weight " + weight.shape().str() + " does not match x " +
                     x.shape().str() + "; expected a last axis of x of " +
                     std::to_string(weight.extent(1)) + ", got " + std::to_string(x.extent(-1)));
  if (!bias) return;
  check_alike("linear", "x", x, "bias", bias);
  const Shape expected{weight.extent(0)};
  if (bias.shape() != expected) refuse_shape("linear", "bias", bias.shape(), expected.str());
}

/// dy through the activation: the gradient of x weight^T + bias.
Tensor gradient_of_sum(const Linear& n, const BackwardPass& pass) {
  const Tensor dy = pass.gradient_of_output().view({n.rows, n.out});
  if (n.activation == Activation::none) return dy;
  const Tensor dsum = empty_like(dy);
  kernels::gelu_backward({dy, pass.saved(2), dsum, n.activation}, pass.stream());
  return dsum;
}

void backward_of_linear(const Linear& n, const BackwardPass& pass) {
  const Tensor dsum = gradient_of_sum(n, pass);
  if (const InputGradient dx(pass, 0); dx) {
    kernels::matmul(
        {.a = dsum, .b = pass.saved(1), .c = dx.tensor(), .M = n.rows, .N = n.in, .K = n.out},
        pass.stream());
    dx.accumulate();
  }
  if (const InputGradient dweight(pass, 1); dweight) {
    kernels::matmul({.a = dsum,
                     .b = pass.saved(0),
                     .c = dweight.tensor(),
                     .M = n.out,
                     .N = n.in,
                     .K = n.rows,
                     .transpose_a = true},
                    pass.stream());
    dweight.accumulate();
  }
  if (const InputGradient dbias(pass, 2); dbias) {
    kernels::reduce({ReduceOp::sum, dsum, dbias.tensor(), 1u << 0}, pass.stream());
    dbias.accumulate();
  }
}

}  // namespace

Var linear(const Var& x, const Var& weight, const Var& bias, Activation activation) {
  const Tensor inputs = floating_operand("linear", "x", x);
  const Tensor matrix = operand("linear", "weight", weight);
  const Tensor shift = bias ? bias.value() : Tensor();
  check_operands(inputs, matrix, shift);

  const Linear n{.rows = rows_of(inputs.shape())[0],
                 .in = matrix.extent(1),
                 .out = matrix.extent(0),
                 .activation = activation};
  const bool recorded = x.needs_gradient() || weight.needs_gradient() || bias.needs_gradient();
  const Tensor y = empty_like(inputs, inputs.shape().with(-1, n.out));
  const Tensor before =
      recorded && activation != Activation::none ? empty_like(inputs, {n.rows, n.out}) : Tensor();
  kernels::matmul({.a = inputs,
                   .b = matrix,
                   .c = y,
                   .M = n.rows,
                   .N = n.out,
                   .K = n.in,
                   .transpose_b = true,
                   .bias = shift,
                   .activation = activation,
                   .pre_activation = before},
                  y.device().compute());
  // Each operand is read only for the other one's gradient.
  return record(
      "linear", {x, weight, bias}, y,
      {weight.needs_gradient() ? inputs : Tensor(), x.needs_gradient() ? matrix : Tensor(), before},
      n, [](const Linear& l, const BackwardPass& pass) { backward_of_linear(l, pass); });
}

}  // namespace zg

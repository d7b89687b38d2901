#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/operand.h"
#include "zerograd/autograd/ops/projection.h"
#include "zerograd/kernels/elementwise/gelu.h"

namespace zg {
namespace {

struct Linear {
  Projection projection;
  Activation activation = Activation::none;
};

/// dy through the activation: the gradient of x weight^T + bias.
Tensor gradient_of_sum(const Linear& n, const BackwardPass& pass) {
  const Tensor dy = pass.gradient_of_output().view({n.projection.rows, n.projection.out});
  if (n.activation == Activation::none) return dy;
  const Tensor dsum = empty_like(dy);
  kernels::gelu_backward({dy, pass.saved(2), dsum, n.activation}, pass.stream());
  return dsum;
}

void backward_of_linear(const Linear& n, const BackwardPass& pass) {
  const Tensor dsum = gradient_of_sum(n, pass);
  if (const InputGradient dx(pass, 0); dx) {
    project_back(n.projection, dsum, pass.saved(1), dx.tensor(), pass.stream());
    dx.accumulate();
  }
  if (pass.needs(1)) accumulate_weight(n.projection, pass, 1, dsum, pass.saved(0));
  accumulate_bias(pass, 2, dsum);
}

}  // namespace

Var linear(const Var& x, const Var& weight, const Var& bias, Activation activation) {
  const Tensor inputs = floating_operand("linear", "x", x);
  const Tensor matrix = operand("linear", "weight", weight);
  const Tensor shift = bias ? bias.value() : Tensor();
  const Projection p = projection_of({"linear", "x", "weight", "bias"}, inputs, matrix, shift);

  const bool recorded = x.needs_gradient() || weight.needs_gradient() || bias.needs_gradient();
  const Tensor y = empty_like(inputs, inputs.shape().with(-1, p.out));
  const Tensor before =
      recorded && activation != Activation::none ? empty_like(inputs, {p.rows, p.out}) : Tensor();
  project(p, {inputs, matrix, shift, activation, y, before});
  // Each operand is read only for the other one's gradient.
  return record(
      "linear", {x, weight, bias}, y,
      {weight.needs_gradient() ? inputs : Tensor(), x.needs_gradient() ? matrix : Tensor(), before},
      Linear{p, activation},
      [](const Linear& n, const BackwardPass& pass) { backward_of_linear(n, pass); });
}

}  // namespace zg

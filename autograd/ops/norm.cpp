#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/norm/layer_norm.h"

namespace zg {
namespace {

/// gamma or beta: one number per element of a row.
void check_scale(const char* op, const char* name, const Tensor& x, const Tensor& scale) {
  check_alike(op, "x", x, name, scale);
  const Shape expected{x.extent(-1)};
  if (scale.shape() != expected) refuse_shape(op, name, scale.shape(), expected.str());
}

/// One number per row, in the accumulator dtype: a statistic that forward saves for backward.
Tensor per_row(const Tensor& x) {
  return Tensor::empty({rows_of(x.shape())[0]}, accumulator(x.dtype()), x.device());
}

Tensor view(const Tensor& x, const Shape& shape) { return x ? x.view(shape) : Tensor(); }

/// Memory for the gradient of the normalised rows. Kernels write it even when it is not needed.
Tensor row_gradient(const BackwardPass& pass, int input, const Tensor& x) {
  const InputGradient dx(pass, input, x.dtype());
  return dx ? dx.tensor() : empty_like(x);
}

/// saved: normalised rows, gamma, mean, rstd. gamma is input `gamma`, beta the next one. `dsum` is
/// the gradient of the rows from their use beside the norm, or absent.
Tensor layer_norm_gradients(const BackwardPass& pass, const Tensor& dy, const Tensor& dsum,
                            int input, int gamma) {
  const Tensor x = pass.saved(0);
  const Shape rows = rows_of(x.shape());
  const Tensor dx = row_gradient(pass, input, x);
  const InputGradient dgamma(pass, gamma, accumulator(x.dtype()));
  const InputGradient dbeta(pass, gamma + 1, accumulator(x.dtype()));
  kernels::layer_norm_backward({.dy = dy.view(rows),
                                .x = x.view(rows),
                                .gamma = pass.saved(1),
                                .mean = pass.saved(2),
                                .rstd = pass.saved(3),
                                .dsum = view(dsum, rows),
                                .dx = dx.view(rows),
                                .dgamma = dgamma.tensor(),
                                .dbeta = dbeta.tensor()},
                               pass.stream());
  dgamma.accumulate();
  dbeta.accumulate();
  return dx;
}

struct None {};

void backward_of_add_layer_norm(const None&, const BackwardPass& pass) {
  const Tensor& dsum = pass.gradient_of_output(0);
  const Tensor& dnormed = pass.gradient_of_output(1);
  const int input = pass.needs(0) ? 0 : 1;
  const Tensor dx = dnormed ? layer_norm_gradients(pass, dnormed, dsum, input, 2) : dsum;
  pass.accumulate(0, dx);
  pass.accumulate(1, dx);
}

void backward_of_rms_norm(const None&, const BackwardPass& pass) {
  const Tensor x = pass.saved(0);
  const Shape rows = rows_of(x.shape());
  const Tensor dx = row_gradient(pass, 0, x);
  const InputGradient dgamma(pass, 1, accumulator(x.dtype()));
  kernels::rms_norm_backward({.dy = pass.gradient_of_output().view(rows),
                              .x = x.view(rows),
                              .gamma = pass.saved(1),
                              .rstd = pass.saved(2),
                              .dx = dx.view(rows),
                              .dgamma = dgamma.tensor()},
                             pass.stream());
  pass.accumulate(0, dx);
  dgamma.accumulate();
}

/// The operands of a norm, after the checks.
struct Norm {
  Tensor x, gamma, beta;
};

Norm norm_of(const char* op, const Var& x, const Var& gamma, const Var& beta) {
  Norm norm{floating_operand(op, "x", x), operand(op, "gamma", gamma),
            beta ? beta.value() : Tensor()};
  check_rank(op, "x", norm.x, 1);
  check_scale(op, "gamma", norm.x, norm.gamma);
  if (beta) check_scale(op, "beta", norm.x, norm.beta);
  return norm;
}

}  // namespace

Var layer_norm(const Var& x, const Var& gamma, const Var& beta, float epsilon) {
  const Norm norm = norm_of("layer_norm", x, gamma, beta);
  const Shape rows = rows_of(norm.x.shape());
  const Tensor y = empty_like(norm.x), mean = per_row(norm.x), rstd = per_row(norm.x);
  kernels::layer_norm_forward({.x = norm.x.view(rows),
                               .gamma = norm.gamma,
                               .beta = norm.beta,
                               .y = y.view(rows),
                               .mean = mean,
                               .rstd = rstd,
                               .epsilon = epsilon},
                              y.device().compute());
  return record("layer_norm", {x, gamma, beta}, y, {norm.x, norm.gamma, mean, rstd}, None{},
                [](const None&, const BackwardPass& pass) {
                  pass.accumulate(
                      0, layer_norm_gradients(pass, pass.gradient_of_output(), Tensor(), 0, 1));
                });
}

NormedSum add_layer_norm(const Var& x, const Var& delta, const Var& gamma, const Var& beta,
                         float epsilon) {
  const char* op = "add_layer_norm";
  const Norm norm = norm_of(op, x, gamma, beta);
  const Tensor added = operand(op, "delta", delta);
  check_alike(op, "x", norm.x, "delta", added);
  if (added.shape() != norm.x.shape())
    refuse_shape(op, "delta", added.shape(), norm.x.shape().str());
  const Shape rows = rows_of(norm.x.shape());
  const Tensor sum = empty_like(norm.x), y = empty_like(norm.x);
  const Tensor mean = per_row(norm.x), rstd = per_row(norm.x);
  kernels::layer_norm_forward({.x = norm.x.view(rows),
                               .residual = added.view(rows),
                               .gamma = norm.gamma,
                               .beta = norm.beta,
                               .y = y.view(rows),
                               .sum = sum.view(rows),
                               .mean = mean,
                               .rstd = rstd,
                               .epsilon = epsilon},
                              y.device().compute());
  const Var inputs[] = {x, delta, gamma, beta};
  const Tensor outputs[] = {sum, y}, saved[] = {sum, norm.gamma, mean, rstd};
  const std::vector<Var> results = record(
      op, inputs, outputs, saved, None{},
      [](const None& none, const BackwardPass& pass) { backward_of_add_layer_norm(none, pass); });
  return {results[0], results[1]};
}

Var rms_norm(const Var& x, const Var& gamma, float epsilon) {
  const Norm norm = norm_of("rms_norm", x, gamma, {});
  const Shape rows = rows_of(norm.x.shape());
  const Tensor y = empty_like(norm.x), rstd = per_row(norm.x);
  kernels::rms_norm_forward({norm.x.view(rows), norm.gamma, y.view(rows), rstd, epsilon},
                            y.device().compute());
  return record(
      "rms_norm", {x, gamma}, y, {norm.x, norm.gamma, rstd}, None{},
      [](const None& none, const BackwardPass& pass) { backward_of_rms_norm(none, pass); });
}

}  // namespace zg

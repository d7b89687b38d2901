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

/// The gradient of the normalised rows. The kernel adds `others`, what other uses of the rows gave,
/// and writes dx: in place where it may, else to new memory, even if dx is not needed.
struct RowGradient {
  Tensor others, dx;

  RowGradient(const BackwardPass& pass, int input, const Tensor& x)
      : others(pass.take_gradient(input, x.dtype())) {
    if (others && others.buffer().use_count() == 1) {
      dx = others;
      return;
    }
    const InputGradient own(pass, input, x.dtype());
    dx = own ? own.tensor() : empty_like(x);
  }
};

/// saved: normalised rows, gamma, mean, rstd. gamma is input `gamma`, beta the next one. `args` has
/// the normalised rows x, dsum, rounds_twice and dx.
void layer_norm_gradients(const BackwardPass& pass, const Tensor& dy, LayerNormBackward args,
                          int gamma) {
  const Shape rows = rows_of(args.x.shape());
  const InputGradient dgamma(pass, gamma, accumulator(args.x.dtype()));
  const InputGradient dbeta(pass, gamma + 1, accumulator(args.x.dtype()));
  args.dy = dy.view(rows);
  args.x = args.x.view(rows);
  args.gamma = pass.saved(1);
  args.mean = pass.saved(2);
  args.rstd = pass.saved(3);
  args.dsum = view(args.dsum, rows);
  args.dx = args.dx.view(rows);
  args.dgamma = dgamma.tensor();
  args.dbeta = dbeta.tensor();
  kernels::layer_norm_backward(args, pass.stream());
  dgamma.accumulate();
  dbeta.accumulate();
}

struct None {};

void backward_of_layer_norm(const None&, const BackwardPass& pass) {
  const Tensor x = pass.saved(0);
  const RowGradient rows(pass, 0, x);
  layer_norm_gradients(pass, pass.gradient_of_output(),
                       {.x = x, .dsum = rows.others, .dx = rows.dx, .rounds_twice = true}, 1);
  pass.accumulate(0, rows.dx);
}

void backward_of_add_layer_norm(const None&, const BackwardPass& pass) {
  const Tensor& dsum = pass.gradient_of_output(0);
  const Tensor& dnormed = pass.gradient_of_output(1);
  Tensor dx = dsum;
  if (dnormed) {
    const Tensor x = pass.saved(0);
    const InputGradient own(pass, pass.needs(0) ? 0 : 1, x.dtype());
    dx = own ? own.tensor() : empty_like(x);
    layer_norm_gradients(pass, dnormed, {.x = x, .dsum = dsum, .dx = dx}, 2);
  }
  pass.accumulate(0, dx);
  pass.accumulate(1, dx);
}

void backward_of_rms_norm(const None&, const BackwardPass& pass) {
  const Tensor x = pass.saved(0);
  const Shape shape = rows_of(x.shape());
  const RowGradient rows(pass, 0, x);
  const InputGradient dgamma(pass, 1, accumulator(x.dtype()));
  kernels::rms_norm_backward({.dy = pass.gradient_of_output().view(shape),
                              .x = x.view(shape),
                              .gamma = pass.saved(1),
                              .rstd = pass.saved(2),
                              .dsum = view(rows.others, shape),
                              .dx = rows.dx.view(shape),
                              .dgamma = dgamma.tensor(),
                              .rounds_twice = true},
                             pass.stream());
  pass.accumulate(0, rows.dx);
  dgamma.accumulate();
}

/// The operands and results of a norm's kernel.
struct Norm {
  Tensor x, delta, gamma, beta;
  Tensor sum;  // x + delta; absent without delta
  Tensor y, mean, rstd;
  const Tensor& normalised() const { return sum ? sum : x; }
};

/// Checks the operands, of which `delta` may be null, and takes memory for the results.
Norm norm_of(const char* op, const Var& x, const Var* delta, const Var& gamma, const Var& beta) {
  Norm norm{.x = floating_operand(op, "x", x), .gamma = operand(op, "gamma", gamma)};
  if (beta) norm.beta = beta.value();
  check_rank(op, "x", norm.x, 1);
  check_scale(op, "gamma", norm.x, norm.gamma);
  if (beta) check_scale(op, "beta", norm.x, norm.beta);
  if (delta) {
    norm.delta = operand(op, "delta", *delta);
    check_alike(op, "x", norm.x, "delta", norm.delta);
    if (norm.delta.shape() != norm.x.shape())
      refuse_shape(op, "delta", norm.delta.shape(), norm.x.shape().str());
    norm.sum = empty_like(norm.x);
  }
  norm.y = empty_like(norm.x);
  return norm;
}

Norm run_layer_norm(const char* op, const Var& x, const Var* delta, const Var& gamma,
                    const Var& beta, float epsilon) {
  Norm norm = norm_of(op, x, delta, gamma, beta);
  norm.mean = per_row(norm.x);
  norm.rstd = per_row(norm.x);
  const Shape rows = rows_of(norm.x.shape());
  kernels::layer_norm_forward({.x = norm.x.view(rows),
                               .residual = view(norm.delta, rows),
                               .gamma = norm.gamma,
                               .beta = norm.beta,
                               .y = norm.y.view(rows),
                               .sum = view(norm.sum, rows),
                               .mean = norm.mean,
                               .rstd = norm.rstd,
                               .epsilon = epsilon},
                              norm.x.device().compute());
  return norm;
}

Norm run_rms_norm(const char* op, const Var& x, const Var* delta, const Var& gamma, float epsilon) {
  Norm norm = norm_of(op, x, delta, gamma, {});
  norm.rstd = per_row(norm.x);
  const Shape rows = rows_of(norm.x.shape());
  kernels::rms_norm_forward({.x = norm.x.view(rows),
                             .residual = view(norm.delta, rows),
                             .gamma = norm.gamma,
                             .y = norm.y.view(rows),
                             .sum = view(norm.sum, rows),
                             .rstd = norm.rstd,
                             .epsilon = epsilon},
                            norm.x.device().compute());
  return norm;
}

Var record_layer_norm(const Var& x, const Var& gamma, const Var& beta, const Norm& norm) {
  return record(
      "layer_norm", {x, gamma, beta}, norm.y, {norm.normalised(), norm.gamma, norm.mean, norm.rstd},
      None{},
      [](const None& none, const BackwardPass& pass) { backward_of_layer_norm(none, pass); });
}

Var record_rms_norm(const Var& x, const Var& gamma, const Norm& norm) {
  return record(
      "rms_norm", {x, gamma}, norm.y, {norm.normalised(), norm.gamma, norm.rstd}, None{},
      [](const None& none, const BackwardPass& pass) { backward_of_rms_norm(none, pass); });
}

/// Records x + delta as add() does.
Var record_sum(const Var& x, const Var& delta, const Tensor& sum) {
  return record("add", {x, delta}, sum, {}, None{}, [](const None&, const BackwardPass& pass) {
    const Tensor& gradient = pass.gradient_of_output();
    pass.accumulate(0, gradient);
    pass.accumulate(1, gradient);
  });
}

}  // namespace

Var layer_norm(const Var& x, const Var& gamma, const Var& beta, float epsilon) {
  return record_layer_norm(x, gamma, beta,
                           run_layer_norm("layer_norm", x, nullptr, gamma, beta, epsilon));
}

NormedSum layer_norm_of_sum(const Var& x, const Var& delta, const Var& gamma, const Var& beta,
                            float epsilon) {
  const Norm norm = run_layer_norm("layer_norm_of_sum", x, &delta, gamma, beta, epsilon);
  const Var sum = record_sum(x, delta, norm.sum);
  return {sum, record_layer_norm(sum, gamma, beta, norm)};
}

NormedSum add_layer_norm(const Var& x, const Var& delta, const Var& gamma, const Var& beta,
                         float epsilon) {
  const char* op = "add_layer_norm";
  const Norm norm = run_layer_norm(op, x, &delta, gamma, beta, epsilon);
  const Var inputs[] = {x, delta, gamma, beta};
  const Tensor outputs[] = {norm.sum, norm.y};
  const Tensor saved[] = {norm.sum, norm.gamma, norm.mean, norm.rstd};
  const std::vector<Var> results = record(
      op, inputs, outputs, saved, None{},
      [](const None& none, const BackwardPass& pass) { backward_of_add_layer_norm(none, pass); });
  return {results[0], results[1]};
}

Var rms_norm(const Var& x, const Var& gamma, float epsilon) {
  return record_rms_norm(x, gamma, run_rms_norm("rms_norm", x, nullptr, gamma, epsilon));
}

NormedSum rms_norm_of_sum(const Var& x, const Var& delta, const Var& gamma, float epsilon) {
  const Norm norm = run_rms_norm("rms_norm_of_sum", x, &delta, gamma, epsilon);
  const Var sum = record_sum(x, delta, norm.sum);
  return {sum, record_rms_norm(sum, gamma, norm)};
}

}  // namespace zg

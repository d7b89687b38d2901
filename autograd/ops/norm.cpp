#include "zerograd/autograd/convolution.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/norm/layer_norm.h"
#include "zerograd/runtime/text/format.h"

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

/// The numbers of a norm.
struct Sums {
  int64_t token_blocks;
  float epsilon;
};

/// The rows of a run of BlockSums.
struct Run {
  int64_t begin, end;

  Run(const BlockSums& sums, const Tensor& x, int64_t index) {
    const int64_t rows = rows_of(x.shape())[0] / sums.count();
    begin = index * rows;
    end = begin + rows;
  }
  Tensor of(const Tensor& x) const { return x ? x.view(rows_of(x.shape())).slice(begin, end) : x; }
};

/// saved: normalised rows, gamma, mean, rstd. gamma is input `gamma`, beta the next one. `args` has
/// the normalised rows x, dsum, rounds_twice and dx.
void layer_norm_gradients(const BackwardPass& pass, const Tensor& dy, const LayerNormBackward& args,
                          int gamma, const Sums& n) {
  const InputGradient dgamma(pass, gamma, accumulator(args.x.dtype()));
  const InputGradient dbeta(pass, gamma + 1, accumulator(args.x.dtype()));
  const BlockSums gammas(dgamma.tensor(), args.x.shape(), n.token_blocks);
  const BlockSums betas(dbeta.tensor(), args.x.shape(), n.token_blocks);
  const Tensor mean = pass.saved(2), rstd = pass.saved(3), scale = pass.saved(1);
  for (int64_t i = 0; i < gammas.count(); ++i) {
    const Run run(gammas, args.x, i);
    kernels::layer_norm_backward({.dy = run.of(dy),
                                  .x = run.of(args.x),
                                  .gamma = scale,
                                  .mean = mean.slice(run.begin, run.end),
                                  .rstd = rstd.slice(run.begin, run.end),
                                  .dsum = run.of(args.dsum),
                                  .dx = run.of(args.dx),
                                  .dgamma = gammas.part(i),
                                  .dbeta = betas.part(i),
                                  .rounds_twice = args.rounds_twice},
                                 pass.stream());
  }
  gammas.add(pass.stream());
  betas.add(pass.stream());
  dgamma.accumulate();
  dbeta.accumulate();
}

void backward_of_layer_norm(const Sums& n, const BackwardPass& pass) {
  const Tensor x = pass.saved(0);
  const RowGradient rows(pass, 0, x);
  layer_norm_gradients(pass, pass.gradient_of_output(),
                       {.x = x, .dsum = rows.others, .dx = rows.dx, .rounds_twice = true}, 1, n);
  pass.accumulate(0, rows.dx);
}

void backward_of_add_layer_norm(const Sums& n, const BackwardPass& pass) {
  const Tensor& dsum = pass.gradient_of_output(0);
  const Tensor& dnormed = pass.gradient_of_output(1);
  Tensor dx = dsum;
  if (dnormed) {
    const Tensor x = pass.saved(0);
    const InputGradient own(pass, pass.needs(0) ? 0 : 1, x.dtype());
    dx = own ? own.tensor() : empty_like(x);
    layer_norm_gradients(pass, dnormed, {.x = x, .dsum = dsum, .dx = dx}, 2, n);
  }
  pass.accumulate(0, dx);
  pass.accumulate(1, dx);
}

void backward_of_rms_norm(const Sums& n, const BackwardPass& pass) {
  const Tensor x = pass.saved(0), dy = pass.gradient_of_output(), scale = pass.saved(1),
               rstd = pass.saved(2);
  const RowGradient rows(pass, 0, x);
  const InputGradient dgamma(pass, 1, accumulator(x.dtype()));
  const BlockSums sums(dgamma.tensor(), x.shape(), n.token_blocks);
  for (int64_t i = 0; i < sums.count(); ++i) {
    const Run run(sums, x, i);
    kernels::rms_norm_backward({.dy = run.of(dy),
                                .x = run.of(x),
                                .gamma = scale,
                                .rstd = rstd.slice(run.begin, run.end),
                                .dsum = run.of(rows.others),
                                .dx = run.of(rows.dx),
                                .dgamma = sums.part(i),
                                .rounds_twice = true},
                               pass.stream());
  }
  sums.add(pass.stream());
  pass.accumulate(0, rows.dx);
  dgamma.accumulate();
}

/// The rows x times gamma, without beta, made of other ops: the rows over the root of their mean
/// square, for a layer norm less their mean.
Var composed_norm(const Var& x, const Var& gamma, bool centred, float epsilon) {
  const DType dtype = accumulator(x.dtype());
  Var rows = cast(x, dtype);
  if (centred) rows = sub(rows, mean(rows, -1, true));
  const Var factor = rsqrt(add(mean(square(rows), -1, true), epsilon));
  const Var normed = mul(rows, factor);
  return cast(mul(normed, cast(gamma, dtype)), x.dtype());
}

/// The operands and results of a norm's kernel.
struct Norm {
  Tensor x, delta, gamma, beta;
  Tensor sum;  // x + delta; absent without delta
  Tensor y, mean, rstd;
  const Tensor& normalised() const { return sum ? sum : x; }
};

/// Checks the operands, of which `delta` may be null, and takes memory for the results.
Norm norm_of(const char* op, const Var& x, const Var* delta, const Var& gamma, const Var& beta,
             int64_t token_blocks) {
  Norm norm{.x = floating_operand(op, "x", x), .gamma = operand(op, "gamma", gamma)};
  if (beta) norm.beta = beta.value();
  check_rank(op, "x", norm.x.shape(), 1);
  check_scale(op, "gamma", norm.x, norm.gamma);
  if (gamma.needs_gradient() || beta.needs_gradient())
    check_token_blocks(op, norm.x.shape(), token_blocks);
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
                    const Var& beta, float epsilon, int64_t token_blocks) {
  Norm norm = norm_of(op, x, delta, gamma, beta, token_blocks);
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

Norm run_rms_norm(const char* op, const Var& x, const Var* delta, const Var& gamma, float epsilon,
                  int64_t token_blocks) {
  Norm norm = norm_of(op, x, delta, gamma, {}, token_blocks);
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

Var record_layer_norm(const Var& x, const Var& gamma, const Var& beta, const Norm& norm,
                      const Sums& sums) {
  return record(
      "layer_norm", {x, gamma, beta}, norm.y, {norm.normalised(), norm.gamma, norm.mean, norm.rstd},
      sums, [](const Sums& n, const BackwardPass& pass) { backward_of_layer_norm(n, pass); },
      [](const Sums& n, const ComposedPass& pass) {
        pass.accumulate(2, pass.gradient_of_output());
        pass.differentiate(composed_norm(pass.input(0, 0), pass.input(1, 1), true, n.epsilon));
      });
}

Var record_rms_norm(const Var& x, const Var& gamma, const Norm& norm, const Sums& sums) {
  return record(
      "rms_norm", {x, gamma}, norm.y, {norm.normalised(), norm.gamma, norm.rstd}, sums,
      [](const Sums& n, const BackwardPass& pass) { backward_of_rms_norm(n, pass); },
      [](const Sums& n, const ComposedPass& pass) {
        pass.differentiate(composed_norm(pass.input(0, 0), pass.input(1, 1), false, n.epsilon));
      });
}

/// Records x + delta as add() does.
Var record_sum(const Var& x, const Var& delta, const Tensor& sum) {
  return record(
      "add", {x, delta}, sum, {}, Sums{},
      [](const Sums&, const BackwardPass& pass) {
        const Tensor& gradient = pass.gradient_of_output();
        pass.accumulate(0, gradient);
        pass.accumulate(1, gradient);
      },
      [](const Sums&, const ComposedPass& pass) {
        for (const int input : {0, 1}) pass.accumulate(input, pass.gradient_of_output());
      });
}

}  // namespace

Var layer_norm(const Var& x, const Var& gamma, const Var& beta, float epsilon,
               int64_t token_blocks) {
  const Norm norm = run_layer_norm("layer_norm", x, nullptr, gamma, beta, epsilon, token_blocks);
  return record_layer_norm(x, gamma, beta, norm, {token_blocks, epsilon});
}

NormedSum layer_norm_of_sum(const Var& x, const Var& delta, const Var& gamma, const Var& beta,
                            float epsilon, int64_t token_blocks) {
  const Norm norm =
      run_layer_norm("layer_norm_of_sum", x, &delta, gamma, beta, epsilon, token_blocks);
  const Var sum = record_sum(x, delta, norm.sum);
  return {sum, record_layer_norm(sum, gamma, beta, norm, {token_blocks, epsilon})};
}

NormedSum add_layer_norm(const Var& x, const Var& delta, const Var& gamma, const Var& beta,
                         float epsilon, int64_t token_blocks) {
  const char* op = "add_layer_norm";
  const Norm norm = run_layer_norm(op, x, &delta, gamma, beta, epsilon, token_blocks);
  const Var inputs[] = {x, delta, gamma, beta};
  const Tensor outputs[] = {norm.sum, norm.y};
  const Tensor saved[] = {norm.sum, norm.gamma, norm.mean, norm.rstd};
  const std::vector<Var> results = record(
      op, inputs, outputs, saved, Sums{token_blocks, epsilon},
      [](const Sums& n, const BackwardPass& pass) { backward_of_add_layer_norm(n, pass); },
      [](const Sums& n, const ComposedPass& pass) {
        pass.accumulate(3, pass.gradient_of_output(1));
        pass.differentiate(composed_norm(pass.output(0, 0), pass.input(2, 1), true, n.epsilon), 1);
        for (const int input : {0, 1}) pass.accumulate(input, pass.gradient_of_output(0));
      });
  return {results[0], results[1]};
}

Var rms_norm(const Var& x, const Var& gamma, float epsilon, int64_t token_blocks) {
  return record_rms_norm(x, gamma,
                         run_rms_norm("rms_norm", x, nullptr, gamma, epsilon, token_blocks),
                         {token_blocks, epsilon});
}

NormedSum rms_norm_of_sum(const Var& x, const Var& delta, const Var& gamma, float epsilon,
                          int64_t token_blocks) {
  const Norm norm = run_rms_norm("rms_norm_of_sum", x, &delta, gamma, epsilon, token_blocks);
  const Var sum = record_sum(x, delta, norm.sum);
  return {sum, record_rms_norm(sum, gamma, norm, {token_blocks, epsilon})};
}

Var group_norm(const Var& x, int64_t groups, const Var& gamma, const Var& beta, float epsilon) {
  const char* op = "group_norm";
  const Tensor values = floating_operand(op, "x", x);
  check_rank(op, "x", values.shape(), 2);
  const Shape& shape = values.shape();
  const int64_t C = shape[1],
                row = groups < 1 ? 0 : shape.numel() / std::max<int64_t>(shape[0], 1) / groups;
  if (groups < 1 || C % groups != 0)
    raise<ConfigError>("{}: {} groups of x {}; expected a divisor of its {} channels", op, groups,
                       shape, C);
  for (const auto& [name, scale] : {std::pair("gamma", &gamma), {"beta", &beta}}) {
    if (!*scale) continue;
    check_alike(op, "x", values, name, scale->value());
    if (scale->shape() != Shape{C}) refuse_shape(op, name, scale->shape(), Shape{C}.str());
  }
  const DType wide = accumulator(values.dtype());
  if (wide != values.dtype()) {
    const auto widened = [&](const Var& part) { return part ? cast(part, wide) : part; };
    const Var wide_x = widened(x), wide_gamma = widened(gamma), wide_beta = widened(beta);
    return cast(group_norm(wide_x, groups, wide_gamma, wide_beta, epsilon), values.dtype());
  }
  const Var rows = reshape(x, Shape{shape[0], groups, row});
  const Tensor ones = Tensor::full({row}, 1.0, wide, values.device());
  const Tensor zeros = Tensor::zeros({row}, wide, values.device());
  Var y = reshape(layer_norm(rows, Var(ones), Var(zeros), epsilon), shape);
  std::vector<int64_t> by_channel(static_cast<size_t>(shape.rank()) - 1, 1);
  by_channel[0] = C;
  if (gamma) y = mul(y, reshape(gamma, Shape(by_channel)));
  if (beta) y = add(y, reshape(beta, Shape(by_channel)));
  return y;
}

}  // namespace zg

#include "zerograd/autograd/ops/op.h"

#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/kernel.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

constexpr uint32_t first_axis = 1u << 0;

Tensor total(const Tensor& x, Stream& stream) {
  const Tensor y = empty_like(x, {});
  kernels::reduce({ReduceOp::sum, x, y, first_axis}, stream);
  return y;
}

Tensor quotient(const Tensor& a, const Tensor& b, Stream& stream) {
  const Tensor y = empty_like(a);
  kernels::binary({BinaryOp::divide, a, b, y}, stream);
  return y;
}

/// The gradient of each row's loss: the loss is their mean over `count` rows.
Tensor row_gradients(const BackwardPass& pass, const Tensor& count, int64_t rows) {
  const Tensor share = quotient(pass.gradient_of_output(), count, pass.stream());
  const Tensor dloss = empty_like(share, {rows});
  expand(share, dloss, pass.stream());
  return dloss;
}

/// Outputs of the loss kernels, one element for each row.
struct RowLosses {
  Tensor loss, log_sum;
};

RowLosses row_losses(const Tensor& x, int64_t rows) {
  const DType sums = accumulator(x.dtype());
  return {Tensor::empty({rows}, sums, x.device()), Tensor::empty({rows}, sums, x.device())};
}

/// `dloss`: the gradient of each row's loss.
void backward_of_cross_entropy(int64_t ignore_index, const Tensor& dloss,
                               const BackwardPass& pass) {
  const Tensor logits = pass.saved(0), targets = pass.saved(1);
  const InputGradient dlogits(pass, 0, logits.dtype());
  kernels::cross_entropy_backward({.logits = logits,
                                   .targets = targets,
                                   .log_sum = pass.saved(2),
                                   .dloss = dloss,
                                   .dlogits = dlogits.view(logits.shape()),
                                   .ignore_index = ignore_index},
                                  pass.stream());
  dlogits.accumulate();
}

/// The same by recorded ops: (softmax - one_hot) dloss, of rows that are not ignored.
void composed_cross_entropy(int64_t ignore_index, const Var& dloss, const ComposedPass& pass) {
  const Tensor targets = pass.saved(1);
  const Var is_ignored = equal(Var(targets), static_cast<double>(ignore_index));
  const Var logits = cast(pass.input(0, 0), dloss.dtype());
  const Shape shape = logits.shape();
  const Tensor wanted = one_hot(targets, shape[-1], dloss.dtype()).view(shape);
  const Var difference = sub(softmax(logits), wanted);
  const Var factor = masked_fill(dloss, is_ignored, 0.0);
  pass.accumulate(0, mul(difference, reshape(factor, shape.with(-1, 1))));
}

/// The number of targets that are not ignored, as a scalar on the device, so the host does not wait
/// for it.
Tensor count_of(const Tensor& targets, int64_t ignore_index, DType dtype, Stream& stream) {
  const Tensor ignored =
      Tensor::full({}, static_cast<double>(ignore_index), targets.dtype(), targets.device());
  const Tensor counts = Tensor::empty(targets.shape(), DType::boolean, targets.device());
  kernels::binary({BinaryOp::not_equal, targets, ignored, counts}, stream);
  const Tensor ones = Tensor::empty(targets.shape(), dtype, targets.device());
  kernels::cast({counts, ones}, stream);
  return total(ones, stream);
}

/// The mean of the rows' losses over `count` rows, a scalar.
Tensor mean_loss(const Tensor& loss, const Tensor& count, Stream& stream) {
  return quotient(total(loss, stream), count, stream);
}

/// The factor of the gradient of a logit, whose absolute value is at most 1, while it is held in
/// x's dtype. It is a power of two, so it changes only bits that f16 would lose below 2^-14.
double gradient_factor(DType dtype) { return dtype == DType::f16 ? 0x1p15 : 1.0; }

/// At least 1. Without any target the losses and their gradients are zeros and stay zeros.
Tensor at_least_one(const Tensor& count, Stream& stream) {
  const Tensor one = Tensor::full({}, 1.0, count.dtype(), count.device());
  const Tensor larger = empty_like(count);
  kernels::binary({BinaryOp::maximum, count, one, larger}, stream);
  return larger;
}

/// Backward of a loss that made the gradients of inputs 0 and 1 in forward. Saved: these gradients
/// and their divisor. They are divided, multiplied by the gradient of the loss and accumulated.
void backward_of_early_gradients(const BackwardPass& pass) {
  const Tensor factor = quotient(pass.gradient_of_output(), pass.saved(2), pass.stream());
  for (const int input : {0, 1}) {
    if (!pass.needs(input)) continue;
    const Tensor gradient = pass.saved(input);
    kernels::binary({BinaryOp::multiply, gradient, factor, gradient}, pass.stream());
    pass.accumulate(input, gradient);
  }
}

Var reduced(const Var& losses, Reduction reduction) {
  return reduction == Reduction::none  ? losses
         : reduction == Reduction::sum ? sum(losses)
                                       : mean(losses);
}

/// Checks that the target has the shape and dtype of x, and returns their accumulator dtype.
DType check_target(const char* op, const char* name, const Var& x, const Var& target) {
  const Tensor values = floating_operand(op, name, x), wanted = operand(op, "target", target);
  check_alike(op, name, values, "target", wanted);
  if (wanted.shape() != values.shape())
    refuse_shape(op, "target", wanted.shape(), values.shape().str());
  return accumulator(values.dtype());
}

/// Operands and results of the kernel, one row for each target.
struct CrossEntropyRows {
  Tensor logits, targets, loss, log_sum;
};
CrossEntropyRows cross_entropy_rows(const Var& logits, const Tensor& targets,
                                    int64_t ignore_index) {
  const Tensor values = floating_operand("cross_entropy", "logits", logits);
  const Tensor wanted = flat_targets("cross_entropy", "logits", values, targets);
  const Tensor rows = values.view(rows_of(values.shape()));
  const auto [loss, log_sum] = row_losses(rows, rows.extent(0));
  const CrossEntropyForward args{rows, wanted, loss, log_sum, ignore_index};
  named("cross_entropy", [&] { kernels::cross_entropy_forward(args, values.device().compute()); });
  return {rows, wanted, loss, log_sum};
}

/// The loss of each target, in the shape of targets; 0 for one that is ignored.
Var losses_of_targets(const Var& logits, const Tensor& targets, int64_t ignore_index) {
  const CrossEntropyRows rows = cross_entropy_rows(logits, targets, ignore_index);
  return record(
      "cross_entropy", {logits}, rows.loss.view(targets.shape()),
      {rows.logits, rows.targets, rows.log_sum}, ignore_index,
      [](int64_t ignored, const BackwardPass& pass) {
        const Tensor& dloss = pass.gradient_of_output();
        backward_of_cross_entropy(ignored, dloss.view({dloss.numel()}), pass);
      },
      [](int64_t ignored, const ComposedPass& pass) {
        const Var dloss = reshape(pass.gradient_of_output(), {-1});
        composed_cross_entropy(ignored, dloss, pass);
      });
}

}  // namespace

Tensor flat_targets(const char* op, const char* name, const Tensor& x, const Tensor& targets) {
  check_rank(op, name, x.shape(), 1);
  check_index(op, "targets", targets);
  check_device(op, {&x, &targets});
  const Shape leading(x.shape().extents().first(static_cast<size_t>(x.shape().rank() - 1)));
  if (targets.shape() != leading) refuse_shape(op, "targets", targets.shape(), leading.str());
  return targets.view({targets.numel()});
}

void check_label_smoothing(const char* op, double smoothing) {
  if (!(smoothing >= 0.0 && smoothing <= 1.0))
    raise<ConfigError>("{}: label_smoothing is {:g}; expected a number in [0, 1]", op, smoothing);
}

Var reduced_losses(const Var& losses, const Tensor& targets, const CrossEntropyOptions& options) {
  if (options.reduction != Reduction::mean) return reduced(losses, options.reduction);
  const Tensor wanted = targets.view({targets.numel()});
  const Tensor count =
      count_of(wanted, options.ignore_index, losses.value().dtype(), wanted.device().compute());
  return div(sum(losses), Var(count));
}

Var mean_of_projection(const char* op, const Var& x, const Var& weight, ProjectionCrossEntropy args,
                       const std::function<void(const ProjectionCrossEntropy&)>& compute) {
  const Device device = args.x.device();
  args.x = args.x.view(rows_of(args.x.shape()));
  args.loss = Tensor::empty({args.x.extent(0)}, accumulator(args.x.dtype()), device);
  const Tensor dx = early_gradient(x), dweight = early_gradient(weight);
  args.dx = dx ? dx.view(rows_of(dx.shape())) : dx;
  args.dweight = dweight;
  args.gradient_factor = gradient_factor(args.x.dtype());
  compute(args);
  Stream& stream = device.compute();
  const Tensor count =
      at_least_one(count_of(args.targets, args.ignore_index, args.loss.dtype(), stream), stream);
  // Makes the gradients of factor * sum(losses) those of the mean.
  const Tensor divisor = dx || dweight ? scaled(count, args.gradient_factor, stream) : Tensor();
  struct NoNumbers {};
  return record(
      op, {x, weight}, mean_loss(args.loss, count, stream), {dx, dweight, divisor}, NoNumbers{},
      [](const NoNumbers&, const BackwardPass& pass) { backward_of_early_gradients(pass); });
}

Var cross_entropy(const Var& logits, const Tensor& targets, int64_t ignore_index) {
  const CrossEntropyRows rows = cross_entropy_rows(logits, targets, ignore_index);
  Stream& stream = rows.loss.device().compute();
  const Tensor count = count_of(rows.targets, ignore_index, rows.loss.dtype(), stream);
  return record(
      "cross_entropy", {logits}, mean_loss(rows.loss, count, stream),
      {rows.logits, rows.targets, rows.log_sum, count}, ignore_index,
      [](int64_t ignored, const BackwardPass& pass) {
        backward_of_cross_entropy(ignored,
                                  row_gradients(pass, pass.saved(3), pass.saved(1).numel()), pass);
      },
      [](int64_t ignored, const ComposedPass& pass) {
        const Var share = div(pass.gradient_of_output(), Var(pass.saved(3)));
        composed_cross_entropy(ignored, share, pass);
      });
}

Var projection_cross_entropy(const Var& x, const Var& weight, const Tensor& targets,
                             int64_t ignore_index) {
  const char* op = "projection_cross_entropy";
  const bool recorded = x.needs_gradient() || weight.needs_gradient();
  const Tensor values = floating_operand(op, "x", x);
  const Tensor matrix = matrix_operand(op, "x", values, "weight", weight, recorded);
  const Tensor wanted = flat_targets(op, "x", values, targets);
  if (matrix.shape().rank() != 2 || matrix.extent(1) != values.extent(-1))
    refuse_shape(op, "weight", matrix.shape(), fmt::format("[V, {}]", values.extent(-1)));
  return mean_of_projection(
      op, x, weight,
      {.x = values, .weight = matrix, .targets = wanted, .ignore_index = ignore_index},
      [](const ProjectionCrossEntropy& args) {
        kernels::projection_cross_entropy(args, args.x.device().compute());
      });
}

Var cross_entropy(const Var& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  check_label_smoothing("cross_entropy", smoothing);
  if (smoothing == 0.0 && options.reduction == Reduction::mean)
    return cross_entropy(logits, targets, options.ignore_index);
  Var losses = losses_of_targets(logits, targets, options.ignore_index);
  if (smoothing > 0.0) {
    const Var x = cast(logits, losses.value().dtype());
    const Var log_sum = logsumexp(x, {-1}), average = mean(x, {-1});
    const Var is_ignored = equal(Var(targets), static_cast<double>(options.ignore_index));
    // The mean over all tokens of log_sum - logit.
    const Var spread = masked_fill(sub(log_sum, average), is_ignored, 0.0);
    losses = mul(losses, 1.0 - smoothing);
    const Var share = mul(spread, smoothing);
    losses = add(losses, share);
  }
  return reduced_losses(losses, targets, options);
}

Var binary_cross_entropy(const Var& logits, const Var& target, Reduction reduction) {
  const DType dtype = check_target("binary_cross_entropy", "logits", logits, target);
  const Var x = cast(logits, dtype), z = cast(target, dtype);
  // max(x, 0) - x z + log(1 + exp(-|x|)). The gradient is written down: that of the parts is wrong
  // at 0, where max and abs have none.
  const Var values(x.value()), wanted(z.value());
  const Var positive = relu(values), product = mul(values, wanted);
  const Var correction = log1p(exp(neg(abs(values))));
  const Var losses = add(sub(positive, product), correction);
  struct NoNumbers {};
  return reduced(
      record(
          "binary_cross_entropy", {x, z}, losses.value(), {x.value(), z.value()}, NoNumbers{},
          [](const NoNumbers&, const BackwardPass& pass) {
            const Var logit(pass.saved(0)), dy(pass.gradient_of_output());
            if (pass.needs(0)) {
              const Var slope = sub(sigmoid(logit), Var(pass.saved(1)));
              pass.accumulate(0, mul(dy, slope).value());
            }
            if (pass.needs(1)) pass.accumulate(1, neg(mul(dy, logit)).value());
          },
          [](const NoNumbers&, const ComposedPass& pass) {
            const Var logit = pass.input(0, 0), dy = pass.gradient_of_output();
            pass.accumulate(0, mul(dy, sub(sigmoid(logit), pass.input(1, 1))));
            pass.accumulate(1, neg(mul(dy, logit)));
          }),
      reduction);
}

Var kl_divergence(const Var& log_p, const Var& target, Reduction reduction, bool log_target) {
  const DType dtype = check_target("kl_divergence", "log_p", log_p, target);
  const Var q = cast(log_p, dtype), p = cast(target, dtype);
  if (log_target) {
    const Var weight = exp(p), difference = sub(p, q);
    return reduced(mul(weight, difference), reduction);
  }
  const Var is_zero = equal(p, 0.0);
  const Var logarithm = log(masked_fill(p, is_zero, 1.0));  // 0 log(0) is 0
  const Var difference = sub(logarithm, q);
  return reduced(mul(p, difference), reduction);
}

Var mse(const Var& x, const Var& target, Reduction reduction) {
  const DType dtype = check_target("mse", "x", x, target);
  const Var difference = cast(sub(x, target), dtype);
  return reduced(mul(difference, difference), reduction);
}

Var huber(const Var& x, const Var& target, double delta, Reduction reduction) {
  if (!(delta > 0)) raise<ConfigError>("huber: delta is {}; expected a number above 0", delta);
  const DType dtype = check_target("huber", "x", x, target);
  const Var distance = cast(sub(x, target), dtype), limited = clamp(distance, -delta, delta);
  const Var rest = sub(distance, mul(limited, 0.5));
  return reduced(mul(limited, rest), reduction);
}

}  // namespace zg

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/operand.h"
#include "zerograd/autograd/ops/projection.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/runtime/error.h"

namespace zg {
namespace {

constexpr const char* op = "feed_forward";

struct FeedForward {
  Projection fc, out;
  Activation activation;
  bool keeps_sum;  ///< true: saves the hidden layer before its activation; false: after it
};

/// Places among the inputs of the record and among what it saves.
enum Input { input_x, input_fc_weight, input_fc_bias, input_out_weight, input_out_bias };
enum Saved { saved_x, saved_fc_weight, saved_hidden, saved_out_weight };

Tensor activation_of(const FeedForward& n, const BackwardPass& pass, const Tensor& hidden) {
  if (!n.keeps_sum) return hidden;
  const Tensor activated = empty_like(hidden);
  kernels::gelu_forward({hidden, activated, n.activation}, pass.stream());
  return activated;
}

/// The gradient of the hidden layer's sum. The activation is gone before this is made: at most one
/// tensor of their size is held beside what is saved.
Tensor backward_to_hidden(const FeedForward& n, const BackwardPass& pass) {
  const Tensor dy = pass.gradient_of_output().view({n.out.rows, n.out.out});
  const bool needs_weight = pass.needs(input_out_weight);
  const Tensor hidden = n.keeps_sum || needs_weight ? pass.saved(saved_hidden) : Tensor();
  if (needs_weight)
    accumulate_weight(n.out, pass, input_out_weight, dy, activation_of(n, pass, hidden));
  accumulate_bias(pass, input_out_bias, dy);
  if (!n.keeps_sum) return {};
  const Tensor dsum = empty_like(hidden);
  project_back(n.out, dy, pass.saved(saved_out_weight), dsum, pass.stream());
  kernels::gelu_backward({dsum, hidden, dsum, n.activation}, pass.stream());
  return dsum;
}

void backward_of_feed_forward(const FeedForward& n, const BackwardPass& pass) {
  const Tensor dsum = backward_to_hidden(n, pass);
  if (!dsum) return;
  if (const InputGradient dx(pass, input_x); dx) {
    project_back(n.fc, dsum, pass.saved(saved_fc_weight), dx.tensor(), pass.stream());
    dx.accumulate();
  }
  if (pass.needs(input_fc_weight))
    accumulate_weight(n.fc, pass, input_fc_weight, dsum, pass.saved(saved_x));
  accumulate_bias(pass, input_fc_bias, dsum);
}

}  // namespace

Var feed_forward(const Var& x, const Var& fc_weight, const Var& fc_bias, const Var& out_weight,
                 const Var& out_bias, Activation activation) {
  const Tensor inputs = floating_operand(op, "x", x);
  const Tensor fc_matrix = operand(op, "fc_weight", fc_weight);
  const Tensor fc_shift = fc_bias ? fc_bias.value() : Tensor();
  const Tensor out_matrix = operand(op, "out_weight", out_weight);
  const Tensor out_shift = out_bias ? out_bias.value() : Tensor();
  if (activation == Activation::none)
    throw ConfigError("feed_forward: the activation is none; expected gelu_tanh or gelu_erf");
  const Projection fc =
      projection_of({op, "x", "fc_weight", "fc_bias"}, inputs, fc_matrix, fc_shift);
  const Tensor activated = empty_like(inputs, inputs.shape().with(-1, fc.out));
  const Projection out =
      projection_of({op, "hidden", "out_weight", "out_bias"}, activated, out_matrix, out_shift);

  const bool keeps_sum =
      x.needs_gradient() || fc_weight.needs_gradient() || fc_bias.needs_gradient();
  const Tensor before = keeps_sum ? empty_like(inputs, {fc.rows, fc.out}) : Tensor();
  project(fc, {inputs, fc_matrix, fc_shift, activation, activated, before});
  const Tensor y = empty_like(inputs, inputs.shape().with(-1, out.out));
  project(out, {.x = activated, .weight = out_matrix, .bias = out_shift, .y = y});

  const auto kept = [](bool read, const Tensor& tensor) { return read ? tensor : Tensor(); };
  return record(
      op, {x, fc_weight, fc_bias, out_weight, out_bias}, y,
      {kept(fc_weight.needs_gradient(), inputs), kept(x.needs_gradient(), fc_matrix),
       keeps_sum ? before : kept(out_weight.needs_gradient(), activated.view({fc.rows, fc.out})),
       kept(keeps_sum, out_matrix)},
      FeedForward{fc, out, activation, keeps_sum},
      [](const FeedForward& n, const BackwardPass& pass) { backward_of_feed_forward(n, pass); });
}

}  // namespace zg

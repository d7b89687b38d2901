#include <algorithm>
#include <optional>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/autograd/tape_state.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// y = x weight^T + bias: x [rows, in], weight [out, in], y [rows, out].
struct Projection {
  int64_t rows = 0, in = 0, out = 0;
};

/// Names of the operands in an op's error messages.
struct ProjectionNames {
  const char *op, *x, *weight, *bias;
};

struct ProjectionForward {
  Tensor x, weight, bias;
  Activation activation = Activation::none;
  Tensor y;               ///< out
  Tensor pre_activation;  ///< out or absent: the argument of the activation
};

/// Throws ShapeError, DTypeError or DeviceError unless the operands fit; bias may be absent.
Projection projection_of(const ProjectionNames& names, const Tensor& x, const Tensor& weight,
                         const Tensor& bias) {
  const auto& [op, x_name, weight_name, bias_name] = names;
  check_rank(op, x_name, x.shape(), 1);
  if (weight.shape().rank() != 2)
    refuse_shape(op, weight_name, weight.shape(), "rank 2: [out, in]");
  if (x.extent(-1) != weight.extent(1))
    raise<ShapeError>("{}: {} {} does not match {} {}; expected a last axis of {} of {}, got {}",
                      op, weight_name, weight.shape(), x_name, x.shape(), x_name, weight.extent(1),
                      x.extent(-1));
  if (bias) {
    check_alike(op, x_name, x, bias_name, bias);
    const Shape expected{weight.extent(0)};
    if (bias.shape() != expected) refuse_shape(op, bias_name, bias.shape(), expected.str());
  }
  return {.rows = rows_of(x.shape())[0], .in = weight.extent(1), .out = weight.extent(0)};
}

void project(const Projection& p, const ProjectionForward& forward) {
  Stream& stream = forward.y.device().compute();
  Matmul product{.a = forward.x,
                 .b = forward.weight,
                 .c = forward.y,
                 .M = p.rows,
                 .N = p.out,
                 .K = p.in,
                 .transpose_b = true,
                 .bias = forward.bias,
                 .activation = forward.activation,
                 .pre_activation = forward.pre_activation};
  if (forward.weight.dtype() == forward.x.dtype()) return kernels::matmul(product, stream);
  // The weight is stored in a narrower dtype. The sums of each output keep their order.
  if (forward.y.numel() == 0) return;
  const PurposeScope purpose(forward.y.device(), Purpose::workspace);
  const int64_t most = std::min(widened_rows(forward.weight, p.rows), p.out);
  const Tensor wide = empty_like(forward.x, {most, p.in});
  product.ldc = p.out;
  for (int64_t begin = 0; begin < p.out; begin += most) {
    product.N = std::min(most, p.out - begin);
    product.b = wide.slice(0, product.N);
    kernels::cast({forward.weight.slice(begin, begin + product.N), product.b}, stream);
    product.c = forward.y.flat(begin, forward.y.numel() - begin);
    if (forward.bias) product.bias = forward.bias.flat(begin, product.N);
    kernels::matmul(product, stream);
  }
}

/// The gradient of x from that of y: dx = dy weight.
void project_back(const Projection& p, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                  Stream& stream) {
  kernels::matmul({.a = dy, .b = weight, .c = dx, .M = p.rows, .N = p.in, .K = p.out}, stream);
}

/// The indices of a projection's parameters among the inputs of a record; no bias: -1.
struct ProjectionInputs {
  int weight, bias;
};

/// Accumulates the gradients of the weight and the bias, if they are needed. x is read for that of
/// the weight only.
void accumulate_parameters(const Projection& p, const BackwardPass& pass,
                           const ProjectionInputs& inputs, const Tensor& dy, const Tensor& x) {
  const InputGradient dweight(pass, inputs.weight);
  std::optional<InputGradient> dbias;
  if (inputs.bias >= 0) dbias.emplace(pass, inputs.bias);
  const Tensor sums = dbias ? dbias->tensor() : Tensor();
  if (dweight)
    kernels::matmul({.a = dy,
                     .b = x,
                     .c = dweight.tensor(),
                     .M = p.out,
                     .N = p.in,
                     .K = p.rows,
                     .transpose_a = true,
                     .row_sums = sums},
                    pass.stream());
  else if (sums)
    kernels::reduce({ReduceOp::sum, dy, sums, 1u << 0}, pass.stream());
  dweight.accumulate();
  if (dbias) dbias->accumulate();
}

struct Linear {
  Projection projection;
  Activation activation = Activation::none;
};

/// The gradient of x weight^T + bias: dy through the derivative of the activation.
Tensor gradient_of_sum(const Linear& n, const BackwardPass& pass) {
  const Shape rows{n.projection.rows, n.projection.out};
  if (!pass.gradient_of_output()) return pass.gradient_of_output(1);
  const Tensor dy = pass.gradient_of_output().view(rows);
  if (n.activation == Activation::none) return dy;
  const Tensor dsum = empty_like(dy);
  kernels::gelu_backward({dy, pass.saved(2), dsum, n.activation}, pass.stream());
  if (const Tensor& others = pass.gradient_of_output(1))
    kernels::axpby({.x = others, .y = dsum, .a = 1.0, .b = 1.0}, pass.stream());
  return dsum;
}

void backward_of_linear(const Linear& n, const BackwardPass& pass) {
  const Tensor dsum = gradient_of_sum(n, pass);
  if (const InputGradient dx(pass, 0); dx) {
    project_back(n.projection, dsum, pass.saved(1), dx.tensor(), pass.stream());
    dx.accumulate();
  }
  TapeState::start_collective(pass, 0);
  accumulate_parameters(n.projection, pass, {.weight = 1, .bias = 2}, dsum,
                        pass.needs(1) ? pass.saved(0) : Tensor());
}

/// The sum before the activation is a second output, of which only this computes.
void composed_linear(const Linear& n, const ComposedPass& pass) {
  const Projection& p = n.projection;
  const bool activates = n.activation != Activation::none;
  if (activates && pass.gradient_of_output()) {
    const Var y = gelu(pass.output(1, 2), n.activation);
    pass.differentiate(reshape(y, pass.gradient_of_output().shape()));
  }
  const Var dy = reshape(pass.gradient_of_output(activates ? 1 : 0), {p.rows, p.out});
  const Var x = pass.input(0, 0);
  if (pass.needs(0)) pass.accumulate(0, reshape(matmul(dy, pass.input(1, 1)), pass.shape_of(0)));
  if (pass.needs(1)) pass.accumulate(1, matmul(transpose(dy, 0, 1), reshape(x, {p.rows, p.in})));
  pass.accumulate(2, dy);
}

constexpr const char* feed_forward_op = "feed_forward";

struct FeedForward {
  Projection fc, out;
  Activation activation;
  bool keeps_sum;  ///< true: saves the hidden layer before its activation; false: after it
};

/// Indices of the inputs of the record and of the tensors that it saves.
enum Input { input_x, input_fc_weight, input_fc_bias, input_out_weight, input_out_bias };
enum Saved { saved_x, saved_fc_weight, saved_hidden, saved_out_weight };

/// The gradient of the hidden layer before its activation; absent if the operands before it need
/// none. Then the saved tensor is the activation, which the gradient of out_weight needs. Otherwise
/// it is the argument of the activation, which nothing reads after this: the activation is written
/// over it, so that backward has one other tensor of that size.
Tensor backward_to_hidden(const FeedForward& n, const BackwardPass& pass) {
  const Tensor dy = pass.gradient_of_output().view({n.out.rows, n.out.out});
  const bool needs_weight = pass.needs(input_out_weight);
  const Tensor hidden = n.keeps_sum || needs_weight ? pass.saved(saved_hidden) : Tensor();
  Tensor dsum;
  if (n.keeps_sum) {
    dsum = empty_like(hidden);
    project_back(n.out, dy, pass.saved(saved_out_weight), dsum, pass.stream());
    kernels::gelu_backward({.dy = dsum,
                            .x = hidden,
                            .dx = dsum,
                            .activation = n.activation,
                            .y = needs_weight ? hidden : Tensor()},
                           pass.stream());
  }
  accumulate_parameters(n.out, pass, {input_out_weight, input_out_bias}, dy, hidden);
  return dsum;
}

void backward_of_feed_forward(const FeedForward& n, const BackwardPass& pass) {
  const Tensor dsum = backward_to_hidden(n, pass);
  if (!dsum) return;
  if (const InputGradient dx(pass, input_x); dx) {
    project_back(n.fc, dsum, pass.saved(saved_fc_weight), dx.tensor(), pass.stream());
    dx.accumulate();
  }
  TapeState::start_collective(pass, input_x);
  accumulate_parameters(n.fc, pass, {input_fc_weight, input_fc_bias}, dsum,
                        pass.needs(input_fc_weight) ? pass.saved(saved_x) : Tensor());
}

// --- gated ---

constexpr const char* gated_feed_forward_op = "gated_feed_forward";

struct GatedFeedForward {
  Projection in, out;  ///< gate and up are alike
  Gate form;
};

enum GatedInput { gated_x, gated_gate_weight, gated_up_weight, gated_out_weight };
enum GatedSaved { kept_x, kept_gate_weight, kept_up_weight, kept_gate, kept_up, kept_out_weight };

/// The gradients of both products; absent when only out_weight has a gradient.
struct GatedGradient {
  Tensor gate, up;
};

GatedGradient backward_to_products(const GatedFeedForward& n, const BackwardPass& pass) {
  const Tensor dy = pass.gradient_of_output().view({n.out.rows, n.out.out});
  const Tensor gate = pass.saved(kept_gate), up = pass.saved(kept_up);
  if (pass.needs(gated_out_weight)) {
    const Tensor hidden = empty_like(gate);
    kernels::gated_forward({.gate = gate, .up = up, .y = hidden, .form = n.form}, pass.stream());
    accumulate_parameters(n.out, pass, {gated_out_weight, -1}, dy, hidden);
  }
  if (!pass.needs(gated_x) && !pass.needs(gated_gate_weight) && !pass.needs(gated_up_weight))
    return {};
  const Tensor dhidden = empty_like(gate), dup = empty_like(up);
  project_back(n.out, dy, pass.saved(kept_out_weight), dhidden, pass.stream());
  kernels::gated_backward(
      {.dy = dhidden, .gate = gate, .up = up, .dgate = dhidden, .dup = dup, .form = n.form},
      pass.stream());
  return {dhidden, dup};
}

void backward_of_gated_feed_forward(const GatedFeedForward& n, const BackwardPass& pass) {
  const GatedGradient gradient = backward_to_products(n, pass);
  if (!gradient.gate) return;
  if (const InputGradient dx(pass, gated_x); dx) {
    const Tensor part = empty_like(dx.tensor());
    project_back(n.in, gradient.gate, pass.saved(kept_gate_weight), part, pass.stream());
    project_back(n.in, gradient.up, pass.saved(kept_up_weight), dx.tensor(), pass.stream());
    kernels::binary({BinaryOp::add, dx.tensor(), part, dx.tensor()}, pass.stream());
    dx.accumulate();
  }
  TapeState::start_collective(pass, gated_x);
  if (pass.needs(gated_gate_weight))
    accumulate_parameters(n.in, pass, {gated_gate_weight, -1}, gradient.gate, pass.saved(kept_x));
  if (pass.needs(gated_up_weight))
    accumulate_parameters(n.in, pass, {gated_up_weight, -1}, gradient.up, pass.saved(kept_x));
}

}  // namespace

Var linear(const Var& x, const Var& weight, const Var& bias, Activation activation) {
  const bool recorded = x.needs_gradient() || weight.needs_gradient() || bias.needs_gradient();
  const Tensor inputs = floating_operand("linear", "x", x);
  const Tensor matrix = matrix_operand("linear", "x", inputs, "weight", weight, recorded);
  const Tensor shift = bias ? bias.value() : Tensor();
  const Projection p = projection_of({"linear", "x", "weight", "bias"}, inputs, matrix, shift);

  const Tensor y = empty_like(inputs, inputs.shape().with(-1, p.out));
  const Tensor pre_activation =
      recorded && activation != Activation::none ? empty_like(inputs, {p.rows, p.out}) : Tensor();
  project(p, {inputs, matrix, shift, activation, y, pre_activation});
  // x is read only for the gradient of weight, weight only for the gradient of x.
  const Var operands[] = {x, weight, bias};
  const Tensor outputs[] = {y, pre_activation};
  const Tensor saved[] = {weight.needs_gradient() ? inputs : Tensor(),
                          x.needs_gradient() ? matrix : Tensor(), pre_activation};
  return record(
      "linear", operands, std::span(outputs).first(pre_activation ? 2 : 1), saved,
      Linear{p, activation},
      [](const Linear& n, const BackwardPass& pass) { backward_of_linear(n, pass); },
      [](const Linear& n, const ComposedPass& pass) { composed_linear(n, pass); })[0];
}

Var feed_forward(const Var& x, const Var& fc_weight, const Var& fc_bias, const Var& out_weight,
                 const Var& out_bias, Activation activation) {
  const bool keeps_sum =
      x.needs_gradient() || fc_weight.needs_gradient() || fc_bias.needs_gradient();
  const bool recorded = keeps_sum || out_weight.needs_gradient() || out_bias.needs_gradient();
  const Tensor inputs = floating_operand(feed_forward_op, "x", x);
  const auto matrix = [&](const char* x_name, const char* name, const Var& weight) {
    return matrix_operand(feed_forward_op, x_name, inputs, name, weight, recorded);
  };
  const Tensor fc_matrix = matrix("x", "fc_weight", fc_weight);
  const Tensor fc_shift = fc_bias ? fc_bias.value() : Tensor();
  const Tensor out_matrix = matrix("hidden", "out_weight", out_weight);
  const Tensor out_shift = out_bias ? out_bias.value() : Tensor();
  if (activation == Activation::none)
    throw ConfigError("feed_forward: the activation is none; expected gelu_tanh or gelu_erf");
  const Projection fc =
      projection_of({feed_forward_op, "x", "fc_weight", "fc_bias"}, inputs, fc_matrix, fc_shift);
  const Tensor activated = empty_like(inputs, inputs.shape().with(-1, fc.out));
  const Projection out = projection_of({feed_forward_op, "hidden", "out_weight", "out_bias"},
                                       activated, out_matrix, out_shift);

  const Tensor pre_activation = keeps_sum ? empty_like(inputs, {fc.rows, fc.out}) : Tensor();
  project(fc, {inputs, fc_matrix, fc_shift, activation, activated, pre_activation});
  const Tensor y = empty_like(inputs, inputs.shape().with(-1, out.out));
  project(out, {.x = activated, .weight = out_matrix, .bias = out_shift, .y = y});

  const auto kept = [](bool read, const Tensor& tensor) { return read ? tensor : Tensor(); };
  return record(
      feed_forward_op, {x, fc_weight, fc_bias, out_weight, out_bias}, y,
      {kept(fc_weight.needs_gradient(), inputs), kept(x.needs_gradient(), fc_matrix),
       keeps_sum ? pre_activation
                 : kept(out_weight.needs_gradient(), activated.view({fc.rows, fc.out})),
       kept(keeps_sum, out_matrix)},
      FeedForward{fc, out, activation, keeps_sum},
      [](const FeedForward& n, const BackwardPass& pass) { backward_of_feed_forward(n, pass); });
}

Var gated(const Var& gate, const Var& up, Gate form) {
  const Tensor gates = floating_operand("gated", "gate", gate), ups = operand("gated", "up", up);
  check_alike("gated", "gate", gates, "up", ups);
  if (ups.shape() != gates.shape()) refuse_shape("gated", "up", ups.shape(), gates.shape().str());
  const Tensor y = empty_like(gates);
  kernels::gated_forward({.gate = gates, .up = ups, .y = y, .form = form}, y.device().compute());
  return record(
      "gated", {gate, up}, y, {gates, ups}, form,
      [](const Gate& of, const BackwardPass& pass) {
        const Tensor g = pass.saved(0), u = pass.saved(1);
        const Tensor dgate = empty_like(g), dup = empty_like(u);
        kernels::gated_backward({.dy = pass.gradient_of_output(),
                                 .gate = g,
                                 .up = u,
                                 .dgate = dgate,
                                 .dup = dup,
                                 .form = of},
                                pass.stream());
        if (pass.needs(0)) pass.accumulate(0, dgate);
        if (pass.needs(1)) pass.accumulate(1, dup);
      },
      [](const Gate& of, const ComposedPass& pass) {
        const Var g = pass.input(0, 0);
        const Var factor = of == Gate::silu        ? silu(g)
                           : of == Gate::gelu_tanh ? gelu(g, Activation::gelu_tanh)
                                                   : gelu(g, Activation::gelu_erf);
        pass.differentiate(mul(factor, pass.input(1, 1)));
      });
}

Var gated_feed_forward(const Var& x, const Var& gate_weight, const Var& up_weight,
                       const Var& out_weight, Gate form) {
  const char* op = gated_feed_forward_op;
  const bool recorded = x.needs_gradient() || gate_weight.needs_gradient() ||
                        up_weight.needs_gradient() || out_weight.needs_gradient();
  const Tensor inputs = floating_operand(op, "x", x);
  const auto matrix = [&](const char* x_name, const char* name, const Var& weight) {
    return matrix_operand(op, x_name, inputs, name, weight, recorded);
  };
  const Tensor gate_matrix = matrix("x", "gate_weight", gate_weight);
  const Tensor up_matrix = matrix("x", "up_weight", up_weight);
  const Tensor out_matrix = matrix("hidden", "out_weight", out_weight);
  const Projection in = projection_of({op, "x", "gate_weight", ""}, inputs, gate_matrix, {});
  if (up_matrix.shape() != gate_matrix.shape())
    refuse_shape(op, "up_weight", up_matrix.shape(), gate_matrix.shape().str());
  const Tensor gate = empty_like(inputs, {in.rows, in.out}), up = empty_like(gate);
  project(in, {.x = inputs, .weight = gate_matrix, .y = gate});
  project(in, {.x = inputs, .weight = up_matrix, .y = up});
  const Tensor hidden = recorded ? empty_like(gate) : gate;
  kernels::gated_forward({.gate = gate, .up = up, .y = hidden, .form = form},
                         hidden.device().compute());
  const Projection out = projection_of({op, "hidden", "out_weight", ""}, hidden, out_matrix, {});
  const Tensor y = empty_like(inputs, inputs.shape().with(-1, out.out));
  project(out, {.x = hidden, .weight = out_matrix, .y = y});

  const bool to_products =
      x.needs_gradient() || gate_weight.needs_gradient() || up_weight.needs_gradient();
  const auto kept = [](bool read, const Tensor& tensor) { return read ? tensor : Tensor(); };
  return record(op, {x, gate_weight, up_weight, out_weight}, y,
                {kept(gate_weight.needs_gradient() || up_weight.needs_gradient(), inputs),
                 kept(x.needs_gradient(), gate_matrix), kept(x.needs_gradient(), up_matrix), gate,
                 up, kept(to_products, out_matrix)},
                GatedFeedForward{in, out, form},
                [](const GatedFeedForward& n, const BackwardPass& pass) {
                  backward_of_gated_feed_forward(n, pass);
                });
}

}  // namespace zg

#include "bench/case.h"
#include "bench/element_rows.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/elementwise/dropout.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/optimizer/optimizer.h"

namespace zg::bench {
namespace {

/// For each element: master weight, gradient and moments, 4 bytes each, are read; all but the
/// gradient are written; if the parameter has a bf16 copy, its 2 bytes are written too.
Op update_op(const char* name, UpdateRule rule, int moments, double flops, bool copies) {
  const auto call = calls(kernels::optimizer_update, [=](auto& operands, auto& e) {
    const auto moment = [&](int number) {
      return number <= moments ? operands.zeros({e[0]}) : Tensor();
    };
    return OptimizerUpdate{
        .tensors = {{.parameter = operands.random({e[0]}, 1),
                     .gradient = operands.random({e[0]}, 2),
                     .moment1 = moment(1),
                     .moment2 = moment(2),
                     .low_precision =
                         copies ? Tensor::zeros({e[0]}, DType::bf16, operands.device) : Tensor(),
                     .weight_decay = 0.1f}},
        .rule = rule};
  });
  return {.name = name,
          .kernels = {{.call = call,
                       .work = element_work(
                           name, {.flops = flops,
                                  .read_bytes = 8.0 + 4.0 * moments,
                                  .written_bytes = 4.0 + 4.0 * moments + (copies ? 2.0 : 0.0)})}},
          .tested = tested_lengths,
          .dtypes = {DType::f32},
          .timed = elements(&Sizes::parameters),
          .timed_dtypes = {DType::f32}};
}

/// For x < 0 the value is an exponential. Its argument reaches 2u = 17 at x = -5 and is rounded
/// three times: a relative error of 51 unit roundoffs. A dozen more operations follow.
const auto gelu_error = roundings(0.0, 64.0);

/// Two terms below 1.2 that cancel near -0.75, each with an error of 64 unit roundoffs.
constexpr double gelu_slope_roundings = 2.0 * 1.2 * 64.0;

Op gelu_op(const std::string& name, Activation form) {
  const auto forward = calls(kernels::gelu_forward, [form](auto& operands, auto& e) {
    return GeluForward{.x = operands.random({e[0]}, 1, -5.0, 5.0),
                       .y = operands.zeros({e[0]}),
                       .activation = form};
  });
  const auto backward = [form](bool with_value) {
    return calls(kernels::gelu_backward, [=](auto& operands, auto& e) {
      return GeluBackward{.dy = operands.random({e[0]}, 1),
                          .x = operands.random({e[0]}, 2, -5.0, 5.0),
                          .dx = operands.zeros({e[0]}),
                          .activation = form,
                          .y = with_value ? operands.zeros({e[0]}) : Tensor()};
    });
  };
  return {.name = name,
          .kernels = {{.call = forward,
                       .work = element_work("gelu forward", 9.0, 1, 1),
                       .error = gelu_error},
                      {.call = backward(false),
                       .work = element_work("gelu backward", 18.0, 2, 1),
                       .error = roundings(gelu_slope_roundings)},
                      {.call = backward(true), .error = roundings(gelu_slope_roundings, 64.0)}},
          .tested = tested_lengths,
          .function = [form](std::span<const Var> in, const Extents&) { return gelu(in[0], form); },
          .variables = variables_in({{-3.0, 3.0}})};
}

/// The errors are those of GELU, multiplied by an operand below 1 and, in backward, by another one.
/// SiLU's exponential has a smaller argument.
Op gated_op(const std::string& name, Gate form) {
  const auto forward = calls(kernels::gated_forward, [form](auto& operands, auto& e) {
    return GatedForward{.gate = operands.random({e[0]}, 1, -5.0, 5.0),
                        .up = operands.random({e[0]}, 2),
                        .y = operands.zeros({e[0]}),
                        .form = form};
  });
  const auto backward = calls(kernels::gated_backward, [form](auto& operands, auto& e) {
    return GatedBackward{.dy = operands.random({e[0]}, 1),
                         .gate = operands.random({e[0]}, 2, -5.0, 5.0),
                         .up = operands.random({e[0]}, 3),
                         .dgate = operands.zeros({e[0]}),
                         .dup = operands.zeros({e[0]}),
                         .form = form};
  });
  return {.name = name,
          .kernels = {{.call = forward,
                       .work = element_work(name + " forward", 7.0, 2, 1),
                       .error = gelu_error},
                      {.call = backward,
                       .work = element_work(name + " backward", 15.0, 3, 2),
                       // dup is a value of the gate times dy: a relative error beside dgate's.
                       .error = roundings(gelu_slope_roundings, 64.0)}},
          .tested = tested_lengths,
          .function = [form](std::span<const Var> in,
                             const Extents&) { return gated(in[0], in[1], form); },
          .variables = variables_in({{-3.0, 3.0}, {-1.0, 1.0}})};
}

/// Extents: samples, elements of a sample.
Op dropout_op() {
  const auto call = calls(kernels::dropout, [](auto& operands, auto& e) {
    return Dropout{.x = operands.random({e[0], e[1]}, 1),
                   .y = operands.zeros({e[0], e[1]}),
                   .probability = 0.1f};
  });
  return {.name = "dropout",
          .kernels = {{.call = call, .work = element_work("dropout", 1.0, 1, 1)}},
          .tested = {{1, 1}, {4, 31}, {3, 33}, {2, 1023}, {4, 2251}},
          .timed = [](const Sizes& sizes) -> std::vector<Extents> {
            return {{4, sizes.hidden / 4}};
          },
          .function = [](std::span<const Var> in,
                         const Extents&) { return dropout(in[0], 0.5f, {.seed = 1}); },
          .variables = variables_of({{0, 1}})};
}

Op axpby_op() {
  const auto call = calls(kernels::axpby, [](auto& operands, auto& e) {
    return Axpby{
        .x = operands.random({e[0]}, 1), .y = operands.random({e[0]}, 2), .a = 0.5, .b = 0.25};
  });
  return {
      .name = "axpby",
      .kernels = {{.call = call, .work = element_work("axpby", 3.0, 2, 1), .error = few_roundings}},
      .tested = tested_lengths,
      .timed = elements(&Sizes::hidden)};
}

/// [B, T, H, D] to [B, H, T, D].
Op permute_op() {
  const auto call = calls(kernels::strided_copy, [](auto& operands, auto& e) {
    const int64_t B = e[0], T = e[1], H = e[2], D = e[3];
    return StridedCopy{.x = operands.random({B, T, H, D}, 1),
                       .y = operands.zeros({B, H, T, D}),
                       .extents = {B, H, T, D},
                       .x_strides = {T * H * D, D, H * D, 1},
                       .y_strides = {T * H * D, T * D, D, 1}};
  });
  return {.name = "permute heads",
          .kernels = {{.call = call, .work = element_work("permute heads", 0.0, 1, 1)}},
          .tested = {{1, 1, 1, 1}, {2, 3, 5, 4}, {1, 33, 31, 4}, {3, 65, 2, 40}},
          .timed = [](const Sizes& sizes) -> std::vector<Extents> {
            return {{sizes.hidden / (1024 * 12 * 64), 1024, 12, 64}};
          },
          .function =
              [](std::span<const Var> in, const Extents&) {
                return permute(in[0], {0, 2, 1, 3});
              },
          .variables = variables_of({{0, 1, 2, 3}})};
}

Op sum_of_squares_op() {
  const auto call = calls(kernels::sum_of_squares, [](auto& operands, auto& e) {
    return SumOfSquares{
        .parts = {{.x = operands.random({e[0]}, 1),
                   .limbs = Tensor::zeros({SumOfSquares::limb_count}, DType::i64, operands.device),
                   .non_finite = Tensor::zeros({1}, DType::i64, operands.device)}}};
  });
  return {.name = "sum of squares",
          .kernels = {{.call = call, .work = element_work("sum of squares", 2.0, 1, 0)}},
          .tested = {{16}, {48}, {1040}, {9008}},
          .timed = elements(&Sizes::flat)};
}

/// `non_finite` has e[0] counts. The sum of squares exceeds the norm at which gradients are
/// clipped.
Op gradient_scale_op() {
  const auto call = calls(kernels::gradient_scale, [](auto& operands, auto& e) {
    std::vector<int64_t> limbs(SumOfSquares::limb_count);
    limbs[limbs.size() / 2] = 5;  // the norm is 2.2
    return GradientScale{.limbs = Tensor::from(limbs, {SumOfSquares::limb_count}, operands.device),
                         .non_finite = Tensor::zeros({e[0]}, DType::i64, operands.device),
                         .scale = Tensor::zeros({1}, DType::f32, operands.device),
                         .clipping = {.micro_batches = 3, .clip_norm = 0.5f}};
  });
  return {.name = "gradient scale",
          .kernels = {{.call = call}},
          .tested = tested_lengths,
          .dtypes = {DType::f32}};
}

/// The case's dtype is the one that the leaf is rounded to; leaf and sum are f32.
Op fold_op() {
  const auto call = calls(kernels::fold_gradient, [](auto& operands, auto& e) {
    return FoldGradient{.parts = {{.leaf = operand({e[0]}, DType::f32, operands.device, 1),
                                   .sum = operand({e[0]}, DType::f32, operands.device, 2)}},
                        .rounding = operands.dtype};
  });
  return {
      .name = "fold gradient",
      .kernels = {{.call = call,
                   .work = element_work("fold gradient",
                                        {.flops = 1.0, .read_bytes = 8.0, .written_bytes = 4.0})}},
      .tested = tested_lengths,
      .dtypes = {DType::f32, DType::bf16, DType::f16},
      .timed = elements(&Sizes::flat)};
}

Op timed_on(int64_t Sizes::*which, Op op) {
  op.timed = elements(which);
  return op;
}

}  // namespace

OpFamily element_ops() {
  return {update_op("adamw", UpdateRule::adam, 2, 14.0, false),
          update_op("adamw, bf16 copy", UpdateRule::adam, 2, 14.0, true),
          update_op("lion", UpdateRule::lion, 1, 9.0, false),
          update_op("sgd, momentum", UpdateRule::sgd, 1, 7.0, false),
          update_op("sgd", UpdateRule::sgd, 0, 4.0, false),
          timed_on(&Sizes::hidden, gelu_op("gelu, tanh", Activation::gelu_tanh)),
          dropout_op(),
          timed_on(&Sizes::hidden, binary_op("add", BinaryOp::add)),
          timed_on(&Sizes::hidden, unary_op("silu", UnaryOp::silu)),
          timed_on(&Sizes::hidden, unary_op("sin", UnaryOp::sin)),
          timed_on(&Sizes::hidden, unary_op("cos", UnaryOp::cos)),
          timed_on(&Sizes::hidden, unary_op("erf", UnaryOp::erf)),
          timed_on(&Sizes::hidden, unary_op("log1p", UnaryOp::log1p)),
          axpby_op(),
          permute_op(),
          sum_of_squares_op(),
          gradient_scale_op(),
          fold_op(),
          gelu_op("gelu, erf", Activation::gelu_erf),
          timed_on(&Sizes::hidden, gated_op("gated, silu", Gate::silu)),
          gated_op("gated, gelu tanh", Gate::gelu_tanh),
          gated_op("gated, gelu erf", Gate::gelu_erf)};
}

}  // namespace zg::bench

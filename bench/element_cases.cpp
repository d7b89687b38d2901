#include "bench/case.h"
#include "bench/operands.h"
#include "zerograd/kernels/elementwise/dropout.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/optimizer/optimizer.h"

namespace zg::bench {
namespace {

using Run = std::function<void()>;

Case element_case(std::string name, int64_t numel, DType dtype, double flops, double read,
                  double written, std::function<Run(const Device&)> make) {
  const auto count = static_cast<double>(numel);
  return {.work = {.name = std::move(name),
                   .shape = numel % Sizes::hidden_width == 0
                                ? by({numel / Sizes::hidden_width, Sizes::hidden_width})
                                : std::to_string(numel),
                   .dtype = dtype,
                   .flops = flops * count,
                   .read = read * count,
                   .written = written * count},
          .make = std::move(make)};
}

/// A case whose operands all have one dtype: `reads` and `writes` of them.
Case uniform_case(std::string name, int64_t numel, DType dtype, double flops, int reads, int writes,
                  std::function<Run(const Device&)> make) {
  const auto size = static_cast<double>(size_of(dtype));
  return element_case(std::move(name), numel, dtype, flops, reads * size, writes * size,
                      std::move(make));
}

/// 4 bytes each of master, gradient and two moments are read and all but the gradient written, and
/// two more where the parameter has a bf16 copy.
Case adam_case(const Sizes& sizes, bool copies) {
  const int64_t numel = sizes.parameters;
  const auto make = [numel, copies](const Device& device) -> Run {
    const Adam call{
        .tensors = {
            {.parameter = operand({numel}, DType::f32, device, 1),
             .gradient = operand({numel}, DType::f32, device, 2),
             .moment1 = Tensor::zeros({numel}, DType::f32, device),
             .moment2 = Tensor::zeros({numel}, DType::f32, device),
             .low_precision = copies ? Tensor::zeros({numel}, DType::bf16, device) : Tensor(),
             .weight_decay = 0.1f}}};
    return [call, device] { kernels::adam(call, device.compute()); };
  };
  return element_case(copies ? "adamw, bf16 copy" : "adamw", numel, DType::f32, 14.0, 16.0,
                      copies ? 14.0 : 12.0, make);
}

Case gelu_forward(const Sizes& sizes, DType dtype) {
  const auto hidden = sizes.hidden;
  return uniform_case("gelu forward", hidden, dtype, 9.0, 1, 1,
                      [hidden, dtype](const Device& device) -> Run {
                        const GeluForward call{.x = operand({hidden}, dtype, device, 1),
                                               .y = Tensor::zeros({hidden}, dtype, device)};
                        return [call, device] { kernels::gelu_forward(call, device.compute()); };
                      });
}

Case gelu_backward(const Sizes& sizes, DType dtype) {
  const auto hidden = sizes.hidden;
  return uniform_case("gelu backward", hidden, dtype, 18.0, 2, 1,
                      [hidden, dtype](const Device& device) -> Run {
                        const GeluBackward call{.dy = operand({hidden}, dtype, device, 1),
                                                .x = operand({hidden}, dtype, device, 2),
                                                .dx = Tensor::zeros({hidden}, dtype, device)};
                        return [call, device] { kernels::gelu_backward(call, device.compute()); };
                      });
}

Case dropout_case(const Sizes& sizes, DType dtype) {
  const auto hidden = sizes.hidden;
  return uniform_case("dropout", hidden, dtype, 1.0, 1, 1,
                      [hidden, dtype](const Device& device) -> Run {
                        const Dropout call{.x = operand({4, hidden / 4}, dtype, device, 1),
                                           .y = Tensor::zeros({4, hidden / 4}, dtype, device),
                                           .probability = 0.1f};
                        return [call, device] { kernels::dropout(call, device.compute()); };
                      });
}

Case add_case(const Sizes& sizes, DType dtype) {
  const auto hidden = sizes.hidden;
  return uniform_case("add", hidden, dtype, 1.0, 2, 1,
                      [hidden, dtype](const Device& device) -> Run {
                        const Binary call{.op = BinaryOp::add,
                                          .a = operand({hidden}, dtype, device, 1),
                                          .b = operand({hidden}, dtype, device, 2),
                                          .y = Tensor::zeros({hidden}, dtype, device)};
                        return [call, device] { kernels::binary(call, device.compute()); };
                      });
}

Case silu_case(const Sizes& sizes, DType dtype) {
  const auto hidden = sizes.hidden;
  return uniform_case("silu", hidden, dtype, 4.0, 1, 1,
                      [hidden, dtype](const Device& device) -> Run {
                        const Unary call{.op = UnaryOp::silu,
                                         .x = operand({hidden}, dtype, device, 1),
                                         .y = Tensor::zeros({hidden}, dtype, device)};
                        return [call, device] { kernels::unary(call, device.compute()); };
                      });
}

Case axpby_case(const Sizes& sizes, DType dtype) {
  const auto hidden = sizes.hidden;
  return uniform_case("axpby", hidden, dtype, 3.0, 2, 1,
                      [hidden, dtype](const Device& device) -> Run {
                        const Axpby call{.x = operand({hidden}, dtype, device, 1),
                                         .y = operand({hidden}, dtype, device, 2),
                                         .a = 0.5,
                                         .b = 0.5};
                        return [call, device] { kernels::axpby(call, device.compute()); };
                      });
}

/// [B, T, H, D] to [B, H, T, D].
Case permute_case(const Sizes& sizes, DType dtype) {
  const auto hidden = sizes.hidden;
  constexpr int64_t T = 1024, H = 12, D = 64;
  const int64_t B = hidden / (T * H * D);
  return uniform_case("permute heads", hidden, dtype, 0.0, 1, 1,
                      [B, dtype](const Device& device) -> Run {
                        const StridedCopy call{.x = operand({B, T, H, D}, dtype, device, 1),
                                               .y = Tensor::zeros({B, H, T, D}, dtype, device),
                                               .extents = {B, H, T, D},
                                               .x_strides = {T * H * D, D, H * D, 1},
                                               .y_strides = {T * H * D, T * D, D, 1}};
                        return [call, device] { kernels::strided_copy(call, device.compute()); };
                      });
}

Case cast_case(const Sizes& sizes, DType from, DType to) {
  const auto flat = sizes.flat;
  return element_case(std::string("cast to ") + name_of(to), flat, from, 0.0,
                      static_cast<double>(size_of(from)), static_cast<double>(size_of(to)),
                      [flat, from, to](const Device& device) -> Run {
                        const Cast call{.x = operand({flat}, from, device, 1),
                                        .y = Tensor::zeros({flat}, to, device)};
                        return [call, device] { kernels::cast(call, device.compute()); };
                      });
}

Case sum_of_squares_case(const Sizes& sizes, DType dtype) {
  const auto flat = sizes.flat;
  return uniform_case("sum of squares", flat, dtype, 2.0, 1, 0,
                      [flat, dtype](const Device& device) -> Run {
                        const SumOfSquares call{
                            .x = operand({flat}, dtype, device, 1),
                            .limbs = Tensor::zeros({SumOfSquares::limb_count}, DType::i64, device),
                            .non_finite = Tensor::zeros({1}, DType::i64, device)};
                        return [call, device] { kernels::sum_of_squares(call, device.compute()); };
                      });
}

Case fold_case(const Sizes& sizes, DType rounding) {
  const auto flat = sizes.flat;
  return element_case("fold gradient", flat, rounding, 1.0, 8.0, 4.0,
                      [flat, rounding](const Device& device) -> Run {
                        const FoldGradient call{.leaf = operand({flat}, DType::f32, device, 1),
                                                .sum = operand({flat}, DType::f32, device, 2),
                                                .rounding = rounding};
                        return [call, device] { kernels::fold_gradient(call, device.compute()); };
                      });
}

}  // namespace

std::vector<Case> element_cases(const Sizes& sizes) {
  std::vector<Case> cases = {adam_case(sizes, false), adam_case(sizes, true)};
  for (DType dtype : {DType::f32, DType::bf16})
    for (const auto& make : {gelu_forward, gelu_backward, dropout_case, add_case, silu_case,
                             axpby_case, permute_case, sum_of_squares_case, fold_case})
      cases.push_back(make(sizes, dtype));
  cases.push_back(cast_case(sizes, DType::f32, DType::bf16));
  cases.push_back(cast_case(sizes, DType::bf16, DType::f32));
  return cases;
}

}  // namespace zg::bench

#include "bench/case.h"
#include "bench/operands.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/norm/layer_norm.h"
#include "zerograd/kernels/reduce/reduce.h"

namespace zg::bench {
namespace {

using Run = std::function<void()>;

Case layer_norm_forward(const Sizes& sizes, DType dtype) {
  const auto tokens = sizes.tokens;
  return {.work = {.name = "layer_norm forward, residual",
                   .shape = tokens.shape(),
                   .dtype = dtype,
                   .flops = 9.0 * tokens.numel(),
                   .read = 2 * tokens.bytes(dtype),
                   .written = 2 * tokens.bytes(dtype)},
          .make = [tokens, dtype](const Device& device) -> Run {
            const Shape shape{tokens.N, tokens.C};
            const LayerNormForward call{.x = operand(shape, dtype, device, 1),
                                        .residual = operand(shape, dtype, device, 2),
                                        .gamma = operand({tokens.C}, dtype, device, 3),
                                        .beta = operand({tokens.C}, dtype, device, 4),
                                        .y = Tensor::zeros(shape, dtype, device),
                                        .sum = Tensor::zeros(shape, dtype, device),
                                        .mean = Tensor::zeros({tokens.N}, DType::f32, device),
                                        .rstd = Tensor::zeros({tokens.N}, DType::f32, device)};
            return [call, device] { kernels::layer_norm_forward(call, device.compute()); };
          }};
}

Case layer_norm_backward(const Sizes& sizes, DType dtype) {
  const auto tokens = sizes.tokens;
  return {.work = {.name = "layer_norm backward, residual",
                   .shape = tokens.shape(),
                   .dtype = dtype,
                   .flops = 15.0 * tokens.numel(),
                   .read = 3 * tokens.bytes(dtype),
                   .written = tokens.bytes(dtype)},
          .make = [tokens, dtype](const Device& device) -> Run {
            const Shape shape{tokens.N, tokens.C};
            const LayerNormBackward call{.dy = operand(shape, dtype, device, 1),
                                         .x = operand(shape, dtype, device, 2),
                                         .gamma = operand({tokens.C}, dtype, device, 3),
                                         .mean = Tensor::zeros({tokens.N}, DType::f32, device),
                                         .rstd = Tensor::full({tokens.N}, 1.7, DType::f32, device),
                                         .dsum = operand(shape, dtype, device, 4),
                                         .dx = Tensor::zeros(shape, dtype, device),
                                         .dgamma = Tensor::zeros({tokens.C}, DType::f32, device),
                                         .dbeta = Tensor::zeros({tokens.C}, DType::f32, device)};
            return [call, device] { kernels::layer_norm_backward(call, device.compute()); };
          }};
}

Case rms_norm_forward(const Sizes& sizes, DType dtype) {
  const auto tokens = sizes.tokens;
  return {.work = {.name = "rms_norm forward",
                   .shape = tokens.shape(),
                   .dtype = dtype,
                   .flops = 4.0 * tokens.numel(),
                   .read = tokens.bytes(dtype),
                   .written = tokens.bytes(dtype)},
          .make = [tokens, dtype](const Device& device) -> Run {
            const Shape shape{tokens.N, tokens.C};
            const RmsNormForward call{.x = operand(shape, dtype, device, 1),
                                      .gamma = operand({tokens.C}, dtype, device, 2),
                                      .y = Tensor::zeros(shape, dtype, device),
                                      .rstd = Tensor::zeros({tokens.N}, DType::f32, device)};
            return [call, device] { kernels::rms_norm_forward(call, device.compute()); };
          }};
}

constexpr int64_t vocabulary = 50257, block = 1024;

Case embedding_forward(const Sizes& sizes, DType dtype) {
  const auto tokens = sizes.tokens;
  return {.work = {.name = "embedding forward",
                   .shape = tokens.shape(),
                   .dtype = dtype,
                   .flops = tokens.numel(),
                   .read = tokens.bytes(dtype),  // positions stay in a cache
                   .written = tokens.bytes(dtype)},
          .make = [tokens, dtype](const Device& device) -> Run {
            const EmbeddingForward call{.ids = random_ids(tokens.N, vocabulary, device),
                                        .weight = operand({vocabulary, tokens.C}, dtype, device, 1),
                                        .position = operand({block, tokens.C}, dtype, device, 2),
                                        .y = Tensor::zeros({tokens.N, tokens.C}, dtype, device),
                                        .T = block};
            return [call, device] { kernels::embedding_forward(call, device.compute()); };
          }};
}

Case embedding_backward(const Sizes& sizes, DType dtype) {
  const auto tokens = sizes.tokens;
  return {.work = {.name = "embedding backward",
                   .shape = tokens.shape() + " to " + by({vocabulary, tokens.C}),
                   .dtype = dtype,
                   .flops = 2.0 * tokens.numel(),
                   .read = tokens.bytes(dtype),
                   .written = bytes_of(vocabulary * tokens.C, DType::f32)},  // every row
          .make = [tokens, dtype](const Device& device) -> Run {
            const EmbeddingBackward call{
                .ids = random_ids(tokens.N, vocabulary, device),
                .dy = operand({tokens.N, tokens.C}, dtype, device, 1),
                .dweight = Tensor::zeros({vocabulary, tokens.C}, DType::f32, device),
                .dposition = Tensor::zeros({block, tokens.C}, DType::f32, device),
                .T = block};
            return [call, device] { kernels::embedding_backward(call, device.compute()); };
          }};
}

Case cross_entropy_forward(const Sizes& sizes, DType dtype) {
  const auto logits = sizes.logits;
  return {.work = {.name = "cross_entropy forward",
                   .shape = logits.shape(),
                   .dtype = dtype,
                   .flops = 4.0 * logits.numel(),
                   .read = logits.bytes(dtype),
                   .written = 0.0},  // one number a row
          .make = [logits, dtype](const Device& device) -> Run {
            const CrossEntropyForward call{
                .logits = operand({logits.N, logits.C}, dtype, device, 1),
                .targets = random_ids(logits.N, vocabulary, device),
                .loss = Tensor::zeros({logits.N}, DType::f32, device),
                .log_sum = Tensor::zeros({logits.N}, DType::f32, device)};
            return [call, device] { kernels::cross_entropy_forward(call, device.compute()); };
          }};
}

Case cross_entropy_backward(const Sizes& sizes, DType dtype) {
  const auto logits = sizes.logits;
  return {.work = {.name = "cross_entropy backward",
                   .shape = logits.shape(),
                   .dtype = dtype,
                   .flops = 3.0 * logits.numel(),
                   .read = logits.bytes(dtype),
                   .written = logits.bytes(dtype)},
          .make = [logits, dtype](const Device& device) -> Run {
            const CrossEntropyBackward call{
                .logits = operand({logits.N, logits.C}, dtype, device, 1),
                .targets = random_ids(logits.N, vocabulary, device),
                .log_sum = Tensor::full({logits.N}, 11.0, DType::f32, device),
                .dloss = Tensor::full({logits.N}, 1.0, DType::f32, device),
                .dlogits = Tensor::zeros({logits.N, logits.C}, dtype, device)};
            return [call, device] { kernels::cross_entropy_backward(call, device.compute()); };
          }};
}

ProjectionCrossEntropy projection_call(int64_t N, int64_t C, DType dtype, const Device& device) {
  return {.x = operand({N, C}, dtype, device, 1),
          .weight = operand({vocabulary, C}, dtype, device, 2),
          .targets = random_ids(N, vocabulary, device),
          .loss = Tensor::zeros({N}, DType::f32, device)};
}

double projection_flops(int64_t N, int64_t C) {
  return 2.0 * static_cast<double>(N) * static_cast<double>(vocabulary * C);
}

Case projection_loss(const Sizes& sizes, int64_t N, DType dtype) {
  const auto tokens = sizes.tokens;
  return {.work = {.name = "projection + cross_entropy",
                   .shape = by({N, vocabulary, tokens.C}),
                   .dtype = dtype,
                   .flops = projection_flops(N, tokens.C),
                   .read = bytes_of((N + vocabulary) * tokens.C, dtype),
                   .written = 0.0},  // one number a row
          .make = [tokens, N, dtype](const Device& device) -> Run {
            const auto call = projection_call(N, tokens.C, dtype, device);
            return [call, device] { kernels::projection_cross_entropy(call, device.compute()); };
          }};
}

/// Three products: the logits, dx and dweight.
Case projection_gradients(const Sizes& sizes, int64_t N, DType dtype) {
  const auto tokens = sizes.tokens;
  const auto make = [tokens, N, dtype](const Device& device) -> Run {
    ProjectionCrossEntropy call = projection_call(N, tokens.C, dtype, device);
    call.dx = Tensor::zeros({N, tokens.C}, DType::f32, device);
    call.dweight = Tensor::zeros({vocabulary, tokens.C}, DType::f32, device);
    return [call, device] { kernels::projection_cross_entropy(call, device.compute()); };
  };
  return {.work = {.name = "projection + cross_entropy and gradients",
                   .shape = by({N, vocabulary, tokens.C}),
                   .dtype = dtype,
                   .flops = 3.0 * projection_flops(N, tokens.C),
                   .read = bytes_of((N + vocabulary) * tokens.C, dtype),
                   .written = bytes_of((N + vocabulary) * tokens.C, DType::f32)},
          .make = make};
}

Case softmax_forward(const Sizes& sizes, DType dtype) {
  const auto scores = sizes.scores;
  return {.work = {.name = "softmax forward",
                   .shape = scores.shape(),
                   .dtype = dtype,
                   .flops = 5.0 * scores.numel(),
                   .read = scores.bytes(dtype),
                   .written = scores.bytes(dtype)},
          .make = [scores, dtype](const Device& device) -> Run {
            const SoftmaxForward call{.x = operand({scores.N, scores.C}, dtype, device, 1),
                                      .y = Tensor::zeros({scores.N, scores.C}, dtype, device)};
            return [call, device] { kernels::softmax_forward(call, device.compute()); };
          }};
}

Case sum_of_rows(const Sizes& sizes, DType dtype) {  // as the gradient of a bias
  const auto tokens = sizes.tokens;
  return {.work = {.name = "sum of rows",
                   .shape = tokens.shape(),
                   .dtype = dtype,
                   .flops = tokens.numel(),
                   .read = tokens.bytes(dtype),
                   .written = 0.0},  // one row
          .make = [tokens, dtype](const Device& device) -> Run {
            const Reduce call{.op = ReduceOp::sum,
                              .x = operand({tokens.N, tokens.C}, dtype, device, 1),
                              .y = Tensor::zeros({tokens.C}, DType::f32, device),
                              .axes = 1};
            return [call, device] { kernels::reduce(call, device.compute()); };
          }};
}

}  // namespace

std::vector<Case> row_cases(const Sizes& sizes) {
  std::vector<Case> cases;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& make :
         {layer_norm_forward, layer_norm_backward, rms_norm_forward, embedding_forward,
          embedding_backward, cross_entropy_forward, cross_entropy_backward})
      cases.push_back(make(sizes, dtype));
    for (int64_t N : {sizes.logits.N / 2, sizes.logits.N})
      for (const auto& make : {projection_loss, projection_gradients})
        cases.push_back(make(sizes, N, dtype));
    for (const auto& make : {softmax_forward, sum_of_rows}) cases.push_back(make(sizes, dtype));
  }
  return cases;
}

}  // namespace zg::bench

#include <cmath>

#include "bench/case.h"
#include "bench/op.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/matmul/matmul.h"

namespace zg::bench {
namespace {

/// Extents: M, N, K, transpose_a, transpose_b. On an accelerator long rows begin at multiples of 16
/// bytes, as those of a head's logits do.
Matmul product(const Operands& operands, const Extents& e) {
  constexpr int64_t long_row = 1024, step = 8;
  const auto distance = [&](int64_t row) {
    const bool packed = operands.device.type() == Device::Type::cpu || row < long_row;
    return packed ? row : (row + step - 1) / step * step;
  };
  const int64_t M = e[0], N = e[1], K = e[2];
  const bool transpose_a = e[3] != 0, transpose_b = e[4] != 0;
  const int64_t lda = distance(transpose_a ? M : K), ldb = distance(transpose_b ? K : N);
  return {.a = operands.random(Shape{transpose_a ? K : M, lda}, 1),
          .b = operands.random(Shape{transpose_b ? N : K, ldb}, 2),
          .c = operands.zeros({M, distance(N)}),
          .M = M,
          .N = N,
          .K = K,
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .lda = lda,
          .ldb = ldb,
          .ldc = distance(N)};
}

Work product_work(DType dtype, const Extents& e) {
  const int64_t M = e[0], N = e[1], K = e[2];
  return {.name = std::string("matmul ") + (e[3] ? "T" : "N") + (e[4] ? "T" : "N"),
          .shape = extents_text({M, N, K}),
          .dtype = dtype,
          .flops = 2.0 * static_cast<double>(M * N * K),
          .read = bytes_of(M * K + K * N, dtype),
          .written = bytes_of(M * N, dtype)};
}

/// Products below 1 add up to partial sums of about sqrt(K) / 3. Each of the K additions in the
/// accumulator has an error of at most u (unit roundoff) times that. Errors of random sign add up
/// to u K / 3, errors of the same sign to u K^1.5 / 3. 4 u (K + 1) is above the largest error among
/// thousands of elements.
Error product_error(DType dtype, const Extents& e) {
  return {.absolute = 4.0 * unit_roundoff(accumulator(dtype)) * static_cast<double>(e[2] + 1)};
}

/// Layers of a GPT, on a CPU by default those of GPT-2 small: forward pass, gradient of x, gradient
/// of the weight. Then the output head of GPT-2 small, on an accelerator all three products of a
/// block of rows; a product of square matrices, layers of a nano GPT, and GPT-2 small for one
/// generated token.
std::vector<Extents> timed_products(const Sizes& sizes) {
  if (sizes.on_accelerator)  // 16 sequences of 1024 tokens; the square exceeds all caches
    return {{16384, 2304, 768, 0, 1}, {16384, 3072, 768, 0, 1}, {16384, 768, 3072, 0, 1},
            {16384, 768, 3072, 0, 0}, {768, 3072, 16384, 1, 0}, {4096, 50257, 768, 0, 1},
            {4096, 768, 50257, 0, 0}, {50257, 768, 4096, 1, 0}, {8192, 8192, 8192, 0, 0},
            {704, 192, 48, 0, 1}};
  const int64_t C = sizes.layer_width;
  return {{1024, C, C, 0, 1},     {1024, C, C, 0, 0},      {C, C, 1024, 1, 0},
          {1024, 4 * C, C, 0, 1}, {1024, C, 4 * C, 0, 1},  {1024, C, 4 * C, 0, 0},
          {C, 4 * C, 1024, 1, 0}, {512, 50257, 768, 0, 1}, {2048, 2048, 2048, 0, 0},
          {64, 48, 48, 0, 1},     {704, 48, 48, 0, 1},     {704, 192, 48, 0, 1},
          {48, 192, 704, 1, 0},   {1, 3072, 768, 0, 1},    {1, 50257, 768, 0, 1}};
}

Op matmul_op() {
  return {.name = "matmul",
          .kernels = {{.call = calls(kernels::matmul, product),
                       .work = product_work,
                       .error = product_error}},
          // Sizes around the tiles of every backend, which have 16 to 256 rows and columns.
          .tested = {{1, 1, 1, 0, 0},
                     {3, 5, 7, 0, 0},
                     {3, 5, 7, 0, 1},
                     {3, 5, 7, 1, 0},
                     {5, 3, 2, 1, 1},
                     {31, 33, 65, 0, 0},
                     {33, 31, 63, 0, 1},
                     {65, 17, 33, 1, 0},
                     {17, 65, 31, 1, 1},
                     {129, 131, 40, 0, 1},
                     {64, 257, 24, 0, 0},
                     {64, 64, 48, 0, 1},
                     {128, 128, 20, 1, 0}},
          .timed = timed_products,
          .function =
              [](std::span<const Var> in, const Extents& e) {
                const Var a = e[3] ? permute(in[0], {1, 0}) : in[0];
                return e[4] ? linear(a, in[1]) : matmul(a, in[1]);
              },
          .variables = [](const Operands& operands, const Extents& e) -> std::vector<Tensor> {
            return {operands.random(e[3] ? Shape{e[2], e[0]} : Shape{e[0], e[2]}, 1),
                    operands.random(e[4] ? Shape{e[1], e[2]} : Shape{e[2], e[1]}, 2)};
          }};
}

/// A linear layer with bias, which also writes the argument of the activation for backward. The
/// activation reads the rounded sum, and the slope of GELU is at most 1.13.
Op linear_op(const std::string& name, Activation activation) {
  return {
      .name = name,
      .kernels = {{.call =
                       [activation](const Operands& operands, const Extents& e) {
                         Matmul call = product(operands, e);
                         call.bias = operands.random({e[1]}, 3);
                         call.activation = activation;
                         call.pre_activation = operands.zeros({e[0], e[1]});
                         return call_of(kernels::matmul, call, operands.device);
                       },
                   .error =
                       [](DType dtype, const Extents& e) {
                         // Sums of K products and a bias stay below sqrt(K) + 2.
                         const double largest = std::sqrt(static_cast<double>(e[2])) + 2.0;
                         const double exact = 16.0 * unit_roundoff(accumulator(dtype));
                         return Error{.absolute = 2.0 * product_error(dtype, e).absolute +
                                                  (1.13 * unit_roundoff(dtype) + exact) * largest};
                       }}},
      .tested = {{1, 1, 1, 0, 1}, {3, 5, 7, 0, 1}, {33, 31, 63, 0, 1}, {17, 130, 20, 0, 1}},
      .function = [activation](std::span<const Var> in,
                               const Extents&) { return linear(in[0], in[1], in[2], activation); },
      .variables = variables_of({{0, 2}, {1, 2}, {1}})};
}

}  // namespace

OpFamily product_ops() {
  return {matmul_op(), linear_op("linear, gelu tanh", Activation::gelu_tanh),
          linear_op("linear, gelu erf", Activation::gelu_erf)};
}

}  // namespace zg::bench

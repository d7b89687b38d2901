#include <cmath>
#include <limits>

#include "bench/case.h"
#include "bench/op.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/norm/layer_norm.h"
#include "zerograd/kernels/reduce/reduce.h"

namespace zg::bench {
namespace {

double numel_of(const Extents& e) { return static_cast<double>(e[0] * e[1]); }

/// Bytes of N x C elements.
double bytes_of_rows(DType dtype, const Extents& e) { return bytes_of(e[0] * e[1], dtype); }

std::function<std::vector<Extents>(const Sizes&)> rows(Rows Sizes::*which) {
  return [which](const Sizes& sizes) -> std::vector<Extents> {
    return {{(sizes.*which).N, (sizes.*which).C}};
  };
}

/// Work on matrices of N x C elements. `flops`: operations for each element; `reads`, `writes`: the
/// number of matrices read and written.
std::function<Work(DType, const Extents&)> row_work(const char* name, double flops, int reads,
                                                    int writes) {
  return [=](DType dtype, const Extents& e) {
    return Work{.name = name,
                .shape = extents_text({e[0], e[1]}),
                .dtype = dtype,
                .flops = flops * numel_of(e),
                .read = reads * bytes_of_rows(dtype, e),
                .written = writes * bytes_of_rows(dtype, e)};
  };
}

/// The allowed error of a sum of n terms of size 1 in the accumulator dtype; partial sums are about
/// sqrt(n).
double sum_error(DType dtype, int64_t n) {
  return unit_roundoff(accumulator(dtype)) * (8.0 + 2.0 * static_cast<double>(n));
}

/// The same for sums along an axis of a matrix.
std::function<Error(DType, const Extents&)> sums_along(int axis) {
  return [axis](DType dtype, const Extents& e) {
    return Error{.absolute = sum_error(dtype, e[static_cast<size_t>(axis)])};
  };
}

/// One case has more rows than backward has blocks of rows.
const std::vector<Extents> tested_norms = {{1, 1},   {3, 5},    {7, 33},
                                           {70, 33}, {2, 1023}, {1100, 31}};
const std::vector<Extents> tested_rows = {{1, 1}, {3, 5}, {5, 31}, {7, 33}, {3, 1023}, {33, 129}};

LayerNormForward layer_norm_forward(const Operands& operands, const Extents& e) {
  const Shape shape{e[0], e[1]};
  return {.x = operands.random(shape, 1),
          .residual = operands.random(shape, 2),
          .gamma = operands.random({e[1]}, 3),
          .beta = operands.random({e[1]}, 4),
          .y = operands.zeros(shape),
          .sum = operands.zeros(shape),
          .mean = operands.sums({e[0]}),
          .rstd = operands.sums({e[0]})};
}

LayerNormBackward layer_norm_backward(const Operands& operands, const Extents& e) {
  const Shape shape{e[0], e[1]};
  return {.dy = operands.random(shape, 1),
          .x = operands.random(shape, 2),
          .gamma = operands.random({e[1]}, 3),
          .mean = Tensor::full({e[0]}, 0.25, operands.wide(), operands.device),
          .rstd = Tensor::full({e[0]}, 1.75, operands.wide(), operands.device),
          .dsum = operands.random(shape, 4),
          .dx = operands.zeros(shape),
          .dgamma = operands.sums({e[1]}),
          .dbeta = operands.sums({e[1]})};
}

/// Standard deviations are above 0.2, except in rows of one element, where x - mean is exactly 0.
/// The sum is rounded to the dtype before it is normalised. Through the mean of squares this
/// changes rstd by rstd^3 times the rounding error.
Error layer_norm_error(DType dtype, const Extents& e) {
  const double rounding = dtype == accumulator(dtype) ? 0.0 : 2.0 * unit_roundoff(dtype);
  const double relative = e[1] == 1 ? 16.0 * unit_roundoff(accumulator(dtype)) : 0.0;
  return {.absolute = 5.0 * (sum_error(dtype, e[1]) + rounding), .relative = relative};
}

/// |gamma dy| <= 1 and |(x - mean) rstd| <= 2.2. dx has two sums over the row, multiplied by 1.75
/// and 3.9. The sums over columns have N terms below 2.2.
Error norm_backward_error(DType dtype, const Extents& e) {
  return {.absolute = 10.0 * sum_error(dtype, e[1]) + 2.2 * sum_error(dtype, e[0])};
}

Op layer_norm_op() {
  return {.name = "layer_norm, residual",
          .kernels = {{.call = calls(kernels::layer_norm_forward, layer_norm_forward),
                       .work = row_work("layer_norm forward, residual", 9.0, 2, 2),
                       .error = layer_norm_error},
                      {.call = calls(kernels::layer_norm_backward, layer_norm_backward),
                       .work = row_work("layer_norm backward, residual", 15.0, 3, 1),
                       .error = norm_backward_error}},
          .tested = tested_norms,
          .timed = rows(&Sizes::tokens),
          .function =
              [](std::span<const Var> in, const Extents&) {
                const NormedSum result = add_layer_norm(in[0], in[1], in[2], in[3]);
                return result.normed + 0.5 * result.sum;
              },
          .variables = variables_of({{0, 1}, {0, 1}, {1}, {1}})};
}

Op rms_norm_op() {
  const auto forward = calls(kernels::rms_norm_forward, [](auto& operands, auto& e) {
    return RmsNormForward{.x = operands.random({e[0], e[1]}, 1),
                          .gamma = operands.random({e[1]}, 2),
                          .y = operands.zeros({e[0], e[1]}),
                          .rstd = operands.sums({e[0]})};
  });
  const auto backward = calls(kernels::rms_norm_backward, [](auto& operands, auto& e) {
    return RmsNormBackward{.dy = operands.random({e[0], e[1]}, 1),
                           .x = operands.random({e[0], e[1]}, 2),
                           .gamma = operands.random({e[1]}, 3),
                           .rstd = Tensor::full({e[0]}, 1.75, operands.wide(), operands.device),
                           .dx = operands.zeros({e[0], e[1]}),
                           .dgamma = operands.sums({e[1]})};
  });
  return {
      .name = "rms_norm",
      .kernels = {{.call = forward,
                   .work = row_work("rms_norm forward", 4.0, 1, 1),
                   .error =
                       [](DType dtype, const Extents& e) {
                         return Error{.relative = sum_error(dtype, e[1])};
                       }},
                  {.call = backward, .error = norm_backward_error}},
      .tested = tested_norms,
      .timed = rows(&Sizes::tokens),
      .function = [](std::span<const Var> in, const Extents&) { return rms_norm(in[0], in[1]); },
      .variables = variables_of({{0, 1}, {1}})};
}

constexpr int64_t vocabulary = 50257;

/// Extents: N tokens, width C, vocabulary, tokens of a sequence.
Op embedding_op() {
  const auto forward = calls(kernels::embedding_forward, [](auto& operands, auto& e) {
    return EmbeddingForward{.ids = random_ids(e[0], e[2], operands.device),
                            .weight = operands.random({e[2], e[1]}, 1),
                            .position = operands.random({e[3], e[1]}, 2),
                            .y = operands.zeros({e[0], e[1]}),
                            .T = e[3]};
  });
  const auto backward = calls(kernels::embedding_backward, [](auto& operands, auto& e) {
    return EmbeddingBackward{.ids = random_ids(e[0], e[2], operands.device),
                             .dy = operands.random({e[0], e[1]}, 1),
                             .dweight = operands.sums({e[2], e[1]}),
                             .dposition = operands.sums({e[3], e[1]}),
                             .T = e[3]};
  });
  const auto backward_work = [](DType dtype, const Extents& e) {
    return Work{.name = "embedding backward",
                .shape = extents_text({e[0], e[1]}) + " to " + extents_text({e[2], e[1]}),
                .dtype = dtype,
                .flops = 2.0 * numel_of(e),
                .read = bytes_of_rows(dtype, e),
                .written = bytes_of(e[2] * e[1], DType::f32)};  // every row of dweight
  };
  return {.name = "embedding",
          // Positions stay in a cache, so they are not read from memory.
          .kernels = {{.call = forward,
                       .work = row_work("embedding forward", 1.0, 1, 1),
                       .error = roundings(2.0)},
                      {.call = backward, .work = backward_work, .error = sums_along(0)}},
          .tested = {{1, 1, 1, 1}, {6, 5, 4, 3}, {35, 17, 11, 5}, {62, 129, 3, 31}},
          .timed = [](const Sizes& sizes) -> std::vector<Extents> {
            return {{sizes.tokens.N, sizes.tokens.C, vocabulary, 1024}};
          },
          .function =
              [](std::span<const Var> in, const Extents& e) {
                const Tensor ids = random_ids(e[0], e[2], in[0].value().device());
                return embedding(ids.view({e[0] / e[3], e[3]}), in[0], in[1]);
              },
          .variables = variables_of({{2, 1}, {3, 1}})};
}

Op cross_entropy_op() {
  const auto forward = calls(kernels::cross_entropy_forward, [](auto& operands, auto& e) {
    return CrossEntropyForward{.logits = operands.random({e[0], e[1]}, 1),
                               .targets = random_ids(e[0], e[1], operands.device),
                               .loss = operands.sums({e[0]}),
                               .log_sum = operands.sums({e[0]})};
  });
  const auto backward = calls(kernels::cross_entropy_backward, [](auto& operands, auto& e) {
    const double log_sum = 0.15 + std::log(static_cast<double>(e[1]));
    return CrossEntropyBackward{
        .logits = operands.random({e[0], e[1]}, 1),
        .targets = random_ids(e[0], e[1], operands.device),
        .log_sum = Tensor::full({e[0]}, log_sum, operands.wide(), operands.device),
        .dloss = Tensor::full({e[0]}, 1.0, operands.wide(), operands.device),
        .dlogits = operands.zeros({e[0], e[1]})};
  });
  // The losses and the sums are one number a row.
  return {.name = "cross_entropy",
          .kernels = {{.call = forward,
                       .work = row_work("cross_entropy forward", 4.0, 1, 0),
                       // An exp and a logarithm with errors of 3 ulp, sums in blocks.
                       .error = roundings(16.0, 8.0)},
                      {.call = backward,
                       .work = row_work("cross_entropy backward", 3.0, 1, 1),
                       // The argument of exp is up to 12; exp turns its error into a relative
                       // error. 1 is subtracted at the target.
                       .error = roundings(4.0, 64.0)}},
          .tested = tested_rows,
          .timed = rows(&Sizes::logits),
          .function =
              [](std::span<const Var> in, const Extents& e) {
                return cross_entropy(in[0], random_ids(e[0], e[1], in[0].value().device()));
              },
          .variables = variables_of({{0, 1}}, -3.0, 3.0)};
}

/// Extents: N rows, V columns of logits, width C.
ProjectionCrossEntropy projection(const Operands& operands, const Extents& e) {
  return {.x = operands.random({e[0], e[2]}, 1),
          .weight = operands.random({e[1], e[2]}, 2),
          .targets = random_ids(e[0], e[1], operands.device),
          .loss = operands.sums({e[0]})};
}

std::function<Work(DType, const Extents&)> projection_work(const char* name, double products) {
  return [=](DType dtype, const Extents& e) {
    const int64_t N = e[0], V = e[1], C = e[2];
    return Work{.name = name,
                .shape = extents_text({N, V, C}),
                .dtype = dtype,
                .flops = products * 2.0 * static_cast<double>(N) * static_cast<double>(V * C),
                .read = bytes_of((N + V) * C, dtype),
                // Without gradients one number for each row is written.
                .written = products > 1.0 ? bytes_of((N + V) * C, DType::f32) : 0.0};
  };
}

/// A logit is a sum of C products below 1; exp turns its error into a relative error. The gradient
/// of a logit is rounded to the dtype. The gradients of a row sum to at most 2, those of a column
/// to less than 4 in the tested cases, which have more columns than rows.
Error projection_error(DType dtype, const Extents& e) {
  const double rounding = dtype == accumulator(dtype) ? 0.0 : unit_roundoff(dtype);
  const double logit = unit_roundoff(accumulator(dtype)) * static_cast<double>(e[2] + 32);
  const double subnormal = dtype == DType::f16 ? 0x1p-25 * static_cast<double>(e[1]) : 0.0;
  return {.absolute = 4.0 * (rounding + 2.0 * logit) + subnormal};
}

Op projection_op() {
  const auto loss = calls(kernels::projection_cross_entropy,
                          [](auto& operands, auto& e) { return projection(operands, e); });
  const auto gradients = calls(kernels::projection_cross_entropy, [](auto& operands, auto& e) {
    ProjectionCrossEntropy args = projection(operands, e);
    args.dx = operands.sums({e[0], e[2]});
    args.dweight = operands.sums({e[1], e[2]});
    return args;
  });
  return {.name = "projection + cross_entropy",
          .kernels = {{.call = loss,
                       .work = projection_work("projection + cross_entropy", 1.0),
                       .error =
                           [](DType dtype, const Extents& e) {
                             return Error{.absolute = 2.0 * unit_roundoff(accumulator(dtype)) *
                                                      static_cast<double>(e[2] + 32)};
                           }},
                      // Three products: the logits, dx and dweight.
                      {.call = gradients,
                       .work = projection_work("projection + cross_entropy and gradients", 3.0),
                       .error = projection_error}},
          .tested = {{1, 1, 1}, {3, 7, 5}, {5, 33, 17}, {31, 67, 33}, {2, 1030, 9}},
          .timed = [](const Sizes& sizes) -> std::vector<Extents> {
            return {{sizes.logits.N / 2, vocabulary, sizes.tokens.C},
                    {sizes.logits.N, vocabulary, sizes.tokens.C}};
          },
          .function =
              [](std::span<const Var> in, const Extents& e) {
                return projection_cross_entropy(in[0], in[1],
                                                random_ids(e[0], e[1], in[0].value().device()));
              },
          .variables = variables_of({{0, 2}, {1, 2}})};
}

Op softmax_op(const char* name, bool log, int axis) {
  const auto forward = calls(kernels::softmax_forward, [=](auto& operands, auto& e) {
    return SoftmaxForward{.x = operands.random({e[0], e[1]}, 1, -8.0, 8.0),
                          .y = operands.zeros({e[0], e[1]}),
                          .log = log,
                          .axis = axis};
  });
  const auto backward = calls(kernels::softmax_backward, [=](auto& operands, auto& e) {
    return SoftmaxBackward{.y = operands.random({e[0], e[1]}, 2, log ? -8.0 : 0.0, log ? 0.0 : 1.0),
                           .dy = operands.random({e[0], e[1]}, 3),
                           .dx = operands.zeros({e[0], e[1]}),
                           .log = log,
                           .axis = axis};
  });
  const auto forward_error = [log](DType dtype, const Extents&) {
    // A difference of numbers up to 16, whose error exp turns into a relative error, and an exp
    // with an error of 2 ulp.
    const double u = unit_roundoff(accumulator(dtype));
    return Error{.absolute = log ? 64.0 * u : 1e-38, .relative = 64.0 * u};
  };
  const bool is_timed = !log && axis == 1;
  std::vector<Extents> tested = tested_rows;
  if (axis == 0) tested.push_back({2, 8200});  // an accelerator's thread takes a column
  return {.name = name,
          .kernels = {{.call = forward,
                       .work = is_timed ? row_work("softmax forward", 5.0, 1, 1)
                                        : std::function<Work(DType, const Extents&)>(),
                       .error = forward_error},
                      {.call = backward, .error = sums_along(axis)}},
          .tested = tested,
          .timed =
              is_timed ? rows(&Sizes::scores) : std::function<std::vector<Extents>(const Sizes&)>(),
          .function =
              [=](std::span<const Var> in, const Extents&) {
                return log ? log_softmax(in[0], axis) : softmax(in[0], axis);
              },
          .variables = variables_of({{0, 1}}, -3.0, 3.0)};
}

/// Axis 0 is reduced for the gradient of a bias, axis 1 for a mean over the width.
Op reduce_op(const char* name, ReduceOp reduction, int axis) {
  const auto call = calls(kernels::reduce, [reduction, axis](auto& operands, auto& e) {
    return Reduce{.op = reduction,
                  .x = operands.random({e[0], e[1]}, 1),
                  .y = operands.sums({e[axis == 0 ? 1 : 0]}),
                  .axes = 1u << axis};
  });
  std::function<Error(DType, const Extents&)> error;  // absent for max, which is exact
  if (reduction != ReduceOp::max) error = sums_along(axis);
  return {.name = name,
          .kernels = {{.call = call, .work = row_work(name, 1.0, 1, 0), .error = error}},
          .tested = tested_rows,
          .function =
              [reduction, axis](std::span<const Var> in, const Extents&) {
                return reduction == ReduceOp::sum    ? sum(in[0], {axis})
                       : reduction == ReduceOp::mean ? mean(in[0], {axis})
                                                     : max(in[0], {axis});
              },
          .variables = variables_of({{0, 1}})};
}

/// The first `most` elements of each row, or all.
Op sort_op(const char* name, int64_t most) {
  const auto count = [most](const Extents& e) { return std::min(e[1], most); };
  return {.name = name,
          .kernels = {{.call = calls(kernels::sort,
                                     [count](auto& operands, auto& e) {
                                       return Sort{.x = operands.random({e[0], e[1]}, 1),
                                                   .y = Tensor::zeros({e[0], count(e)}, DType::i64,
                                                                      operands.device),
                                                   .axis = 1,
                                                   .descending = true};
                                     })}},
          .tested = tested_rows,
          .function = [count](std::span<const Var> in,
                              const Extents& e) { return topk(in[0], count(e)).values; },
          .variables = variables_of({{0, 1}})};
}

/// Axis 0 is scanned for columns of neighbours, axis 1 for rows.
Op scan_op(const char* name, ScanOp op, int axis) {
  const bool sums = op == ScanOp::sum;
  const auto call = calls(kernels::scan, [=](auto& operands, auto& e) {
    const Shape shape{e[0], e[1]};
    return Scan{
        .op = op,
        .x = operands.random(shape, 1),
        .y = sums ? operands.zeros(shape) : Tensor::zeros(shape, DType::i64, operands.device),
        .axis = axis,
        .reversed = axis == 0,
        .values = sums ? Tensor() : operands.zeros(shape)};
  });
  std::function<Error(DType, const Extents&)> error;  // absent for places, which are exact
  if (sums) error = sums_along(axis);
  return {.name = name,
          .kernels = {{.call = call, .error = error}},
          .tested = tested_rows,
          .function =
              [=](std::span<const Var> in, const Extents&) {
                return sums ? cumsum(in[0], axis) : cummax(in[0], axis).values;
              },
          .variables = variables_of({{0, 1}})};
}

}  // namespace

OpFamily row_ops() {
  Op sum_of_rows = reduce_op("sum of rows", ReduceOp::sum, 0);
  sum_of_rows.timed = rows(&Sizes::tokens);
  return {layer_norm_op(),
          rms_norm_op(),
          embedding_op(),
          cross_entropy_op(),
          projection_op(),
          softmax_op("softmax", /*log=*/false, 1),
          std::move(sum_of_rows),
          softmax_op("log_softmax", /*log=*/true, 1),
          softmax_op("softmax of columns", /*log=*/false, 0),
          softmax_op("log_softmax of columns", /*log=*/true, 0),
          reduce_op("sum of columns", ReduceOp::sum, 1),
          reduce_op("mean of columns", ReduceOp::mean, 1),
          reduce_op("max of columns", ReduceOp::max, 1),
          sort_op("top k", 8),
          sort_op("sort", std::numeric_limits<int64_t>::max()),
          scan_op("cumsum of rows", ScanOp::sum, 1),
          scan_op("cumsum of columns", ScanOp::sum, 0),
          scan_op("cummax of rows", ScanOp::place_of_largest, 1),
          scan_op("cummax of columns", ScanOp::place_of_largest, 0)};
}

}  // namespace zg::bench

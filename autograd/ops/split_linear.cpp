#include "zerograd/autograd/collective.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

constexpr size_t max_blocks = std::tuple_size_v<decltype(ReductionGroups::blocks)>;

/// Several products of one x [rows, in]; product i has outs[i] columns.
struct SplitLinears {
  int count;
  int64_t rows, in;
  std::array<int64_t, max_blocks> outs;
  std::array<int64_t, max_blocks> widths;  ///< of a group's part of a row of product i
  ReductionGroups groups;                  ///< of all columns together
};

/// The gradient of a weight.
void accumulate_weight(const BackwardPass& pass, int weight, const Tensor& dy, const Tensor& x) {
  const InputGradient dweight(pass, weight);
  if (!dweight) return;
  kernels::matmul({.a = dy,
                   .b = x,
                   .c = dweight.tensor(),
                   .M = dy.extent(1),
                   .N = x.extent(1),
                   .K = dy.extent(0),
                   .transpose_a = true},
                  pass.stream());
  dweight.accumulate();
}

/// The gradient of a bias [out]. The order of the sum follows `width`, and BlockSums.
void accumulate_bias(const BackwardPass& pass, int bias, const Tensor& dy, int64_t width,
                     int64_t token_blocks) {
  const InputGradient dbias(pass, bias, accumulator(dy.dtype()));
  if (!dbias) return;
  const BlockSums sums(dbias.tensor(), dy.shape(), token_blocks);
  const Shape rows = rows_of(dy.shape()), runs{sums.count(), 1, rows[1]};
  const Tensor dy_of_runs = dy.view(runs.with(1, rows[0] / std::max<int64_t>(sums.count(), 1)));
  kernels::reduce({ReduceOp::sum, dy_of_runs, sums.parts().view(runs), 1u << 1, width},
                  pass.stream());
  sums.add(pass.stream());
  dbias.accumulate();
}

/// Tensors next to each other along an axis; one tensor itself.
Tensor joined(std::span<const Tensor> parts, int axis, Stream& stream) {
  if (parts.size() == 1) return parts[0];
  int64_t extent = 0, begin = 0;
  for (const Tensor& part : parts) extent += part.extent(axis);
  const Tensor whole = empty_like(parts[0], parts[0].shape().with(axis, extent));
  for (const Tensor& part : parts) {
    write_block(part, whole, axis, begin, stream);
    begin += part.extent(axis);
  }
  return whole;
}

/// Inputs: x, the weights, the biases. Saved: x, the weights.
void backward_of_linears(const SplitLinears& n, const BackwardPass& pass) {
  std::vector<Tensor> gradients, weights;
  int present = 0;
  while (!pass.gradient_of_output(present)) ++present;
  const Tensor& like = pass.gradient_of_output(present);
  for (int i = 0; i < n.count; ++i) {
    const Shape shape{n.rows, n.outs[static_cast<size_t>(i)]};
    const Tensor& dy = pass.gradient_of_output(i);
    gradients.push_back(dy ? dy.view(shape) : Tensor::zeros(shape, like.dtype(), like.device()));
  }
  if (const InputGradient dx(pass, 0); dx) {
    for (int i = 0; i < n.count; ++i) weights.push_back(pass.saved(1 + i));
    const Tensor dy = joined(gradients, 1, pass.stream());
    kernels::matmul({.a = dy,
                     .b = joined(weights, 0, pass.stream()),
                     .c = dx.tensor(),
                     .M = n.rows,
                     .N = n.in,
                     .K = dy.extent(1),
                     .groups = n.groups},
                    pass.stream());
    dx.accumulate();
  }
  for (int i = 0; i < n.count; ++i) {
    const Tensor& dy = gradients[static_cast<size_t>(i)];
    accumulate_weight(pass, 1 + i, dy,
                      pass.needs(1 + i) ? pass.saved(0).view({n.rows, n.in}) : Tensor());
    accumulate_bias(pass, 1 + n.count + i, dy, n.widths[static_cast<size_t>(i)], 0);
  }
}

struct SplitSum {
  int64_t rows, in, out, token_blocks;
  Communicator* scattered;  ///< the ranks, each of which has a slice of the tokens; null: none
  Activation activation;
  bool is_gated;
  Gate gate;

  bool is_plain() const { return !is_gated && activation == Activation::none; }
};

/// The operand of the product, from the values that are saved.
Tensor operand_of(const SplitSum& n, const Tensor& x, const Tensor& up, Stream& stream) {
  if (n.is_plain()) return x;
  const Tensor y = empty_like(x);
  if (n.is_gated)
    kernels::gated_forward({x, up, y, n.gate}, stream);
  else
    kernels::gelu_forward({x, y, n.activation}, stream);
  return y;
}

/// Inputs and saved: x, the weight, up; input 3 is the bias.
void backward_of_sum(const SplitSum& n, const BackwardPass& pass) {
  Tensor dy = pass.gradient_of_output();
  accumulate_bias(pass, 3, dy, n.out, n.token_blocks);
  const bool needs_operand = pass.needs(0) || pass.needs(2);
  if (!needs_operand && !pass.needs(1)) return;
  if (n.scattered) dy = gathered("split_sum gradient", dy, dy.shape().rank() - 2, *n.scattered);
  dy = dy.view({n.rows, n.out});
  const Tensor x = pass.needs(1) || !n.is_plain() ? pass.saved(0) : Tensor();
  const Tensor up = n.is_gated ? pass.saved(2) : Tensor();
  if (pass.needs(1))
    accumulate_weight(pass, 1, dy, operand_of(n, x, up, pass.stream()).view({n.rows, n.in}));
  if (!needs_operand) return;
  const Tensor dx = n.is_plain() ? pass.make_gradient(0) : empty_like(x);
  kernels::matmul({.a = dy, .b = pass.saved(1), .c = dx, .M = n.rows, .N = n.in, .K = n.out},
                  pass.stream());
  if (n.is_gated) {
    const Tensor dup = empty_like(up);
    kernels::gated_backward({dx, x, up, dx, dup, n.gate}, pass.stream());
    pass.accumulate(2, dup);
  } else if (!n.is_plain()) {
    kernels::gelu_backward({dx, x, dx, n.activation}, pass.stream());
  }
  pass.accumulate(0, dx);
}

Tensor matrix_of(const char* op, const Tensor& x, const Var& weight) {
  const Tensor matrix = operand(op, "weight", weight);
  check_alike(op, "x", x, "weight", matrix);
  if (matrix.shape().rank() != 2 || matrix.extent(1) != x.extent(-1))
    refuse_shape(op, "weight", matrix.shape(), fmt::format("[out, {}]", x.extent(-1)));
  return matrix;
}

}  // namespace

std::vector<Var> split_linears(const Var& x, std::span<const SplitWeight> parts, int64_t groups) {
  const char* op = "split_linears";
  const Tensor values = floating_operand(op, "x", x);
  const Shape rows = rows_of(values.shape());
  int64_t blocks = 0;
  for (const SplitWeight& part : parts) blocks += part.blocks;
  if (blocks < 1 || blocks > int64_t{max_blocks})
    raise<ShapeError>("{}: {} weights of {} blocks; expected 1 to {} blocks", op, parts.size(),
                      blocks, max_blocks);
  SplitLinears n{.count = static_cast<int>(parts.size()),
                 .rows = rows[0],
                 .in = rows[1],
                 .outs = {},
                 .widths = {},
                 .groups = {.count = groups}};
  std::vector<Var> inputs = {x};
  std::vector<Tensor> outputs, saved = {Tensor()};
  size_t block = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const SplitWeight& part = parts[i];
    const Tensor matrix = matrix_of(op, values, part.weight);
    const int64_t out = matrix.extent(0);
    n.outs[i] = out;
    n.widths[i] = part.blocks * part.extent;
    for (int64_t b = 0; b < part.blocks; ++b)
      n.groups.blocks.at(block++) = {out / part.blocks, part.extent};
    const Tensor y = empty_like(values, values.shape().with(-1, out));
    kernels::matmul({.a = values,
                     .b = matrix,
                     .c = y,
                     .M = rows[0],
                     .N = out,
                     .K = rows[1],
                     .transpose_b = true,
                     .bias = part.bias ? part.bias.value() : Tensor()},
                    values.device().compute());
    inputs.push_back(part.weight);
    outputs.push_back(y);
    saved.push_back(x.needs_gradient() ? matrix : Tensor());
    if (part.weight.needs_gradient()) saved[0] = values;
  }
  for (const SplitWeight& part : parts) inputs.push_back(part.bias);
  return record(
      op, inputs, outputs, saved, n,
      [](const SplitLinears& of, const BackwardPass& pass) { backward_of_linears(of, pass); });
}

Var split_sum(const SplitOperand& h, const SplitWeight& part, int64_t groups, Communicator* ranks,
              bool sequence) {
  const char* op = "split_sum";
  const auto& [x, up, activation, gate] = h;
  const Tensor values = floating_operand(op, "x", x), matrix = matrix_of(op, values, part.weight);
  const Tensor ups = up ? up.value() : Tensor();
  const Tensor bias = part.bias ? part.bias.value() : Tensor();
  const Shape rows = rows_of(values.shape()), shape = values.shape().with(-1, matrix.extent(0));
  const bool alone = !ranks || ranks->size() == 1, scatters = sequence && !alone;
  const int64_t all_groups = alone ? groups : groups * ranks->size();
  if (part.bias.needs_gradient()) check_token_blocks(op, values.shape(), all_groups);
  const SplitSum n{.rows = rows[0],
                   .in = rows[1],
                   .out = matrix.extent(0),
                   .token_blocks = scatters ? groups : all_groups,
                   .scattered = scatters ? ranks : nullptr,
                   .activation = activation,
                   .is_gated = static_cast<bool>(up),
                   .gate = gate};
  const DType dtype = values.dtype();
  Tensor y = Tensor::empty(shape, alone ? dtype : accumulator(dtype), values.device());
  kernels::matmul({.a = operand_of(n, values, ups, values.device().compute()),
                   .b = matrix,
                   .c = y,
                   .M = n.rows,
                   .N = n.out,
                   .K = n.in,
                   .transpose_b = true,
                   .bias = alone ? bias : Tensor(),
                   .groups = {.count = groups, .blocks = {{{n.in, part.extent}}}}},
                  values.device().compute());
  if (!alone)
    y = tree_sum(y, {.name = op,
                     .ranks = ranks,
                     .bias = bias,
                     .dtype = dtype,
                     .axis = scatters ? shape.rank() - 2 : -1});
  const bool reads_x = !n.is_plain() && (x.needs_gradient() || up.needs_gradient());
  return record(op, {x, part.weight, up, part.bias}, y,
                {part.weight.needs_gradient() || reads_x ? values : Tensor(),
                 x.needs_gradient() || up.needs_gradient() ? matrix : Tensor(), ups},
                n, [](const SplitSum& of, const BackwardPass& pass) { backward_of_sum(of, pass); });
}

}  // namespace zg

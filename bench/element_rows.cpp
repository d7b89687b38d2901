#include "bench/element_rows.h"

#include "zerograd/autograd/ops.h"

namespace zg::bench {
namespace {

struct Range {
  double low, high;
};

/// The range of x. It excludes numbers near poles, such as those of log, sqrt, 1 / x and log1p.
Range domain_of(UnaryOp op) {
  if (op == UnaryOp::tan || op == UnaryOp::asin || op == UnaryOp::acos) return {-0.9, 0.9};
  const bool positive =
      op == UnaryOp::log || op == UnaryOp::sqrt || op == UnaryOp::reciprocal || op == UnaryOp::log2;
  return {positive ? 0.25 : op == UnaryOp::log1p ? -0.75 : -3.0, 3.0};
}

/// The range of the forward result, for ops whose backward reads it.
Range result_of(UnaryOp op) {
  if (op == UnaryOp::exp) return {0.05, 20.0};
  if (op == UnaryOp::sqrt) return {0.5, 1.75};
  return {op == UnaryOp::tanh ? -1.0 : 0.0, 1.0};
}

/// The numbers of ops that have some.
constexpr double p = 0.25, q = 1.5;
Var negate(const Var& x) { return neg(x); }
Var clamp(const Var& x) { return zg::clamp(x, p, q); }
Var elu(const Var& x) { return zg::elu(x, p); }
Var leaky_relu(const Var& x) { return zg::leaky_relu(x, p); }

Var unary_of(UnaryOp op, const Var& x) {
  constexpr std::pair<UnaryOp, Var (*)(const Var&)> functions[] = {
#define ZG_UNARY(name, ...) {UnaryOp::name, name},
#include "zerograd/kernels/elementwise/formulas.inc"
  };
  return functions[static_cast<size_t>(op)].second(x);
}

Var binary_of(BinaryOp op, const Var& a, const Var& b) {
  constexpr std::pair<BinaryOp, Var (*)(const Var&, const Var&)> functions[] = {
      {BinaryOp::add, zg::add},         {BinaryOp::subtract, sub},
      {BinaryOp::multiply, mul},        {BinaryOp::divide, div},
      {BinaryOp::power, pow},           {BinaryOp::maximum, maximum},
      {BinaryOp::logaddexp, logaddexp}, {BinaryOp::remainder, remainder}};
  for (const auto& [known, function] : functions)
    if (known == op) return function(a, b);
  return minimum(a, b);
}

}  // namespace

std::function<Work(DType, const Extents&)> element_work(std::string name, const ElementWork& work) {
  return [name = std::move(name), work](DType dtype, const Extents& e) {
    int64_t numel = 1;
    for (const int64_t extent : e) numel *= extent;
    const auto count = static_cast<double>(numel);
    return Work{.name = name,
                .shape = numel % Sizes::hidden_width == 0
                             ? extents_text({numel / Sizes::hidden_width, Sizes::hidden_width})
                             : std::to_string(numel),
                .dtype = dtype,
                .flops = work.flops * count,
                .read = work.read_bytes * count,
                .written = work.written_bytes * count};
  };
}

std::function<Work(DType, const Extents&)> element_work(std::string name, double flops, int reads,
                                                        int writes) {
  return [name = std::move(name), flops, reads, writes](DType dtype, const Extents& e) {
    const auto size = static_cast<double>(size_of(dtype));
    return element_work(name, {flops, reads * size, writes * size})(dtype, e);
  };
}

std::function<std::vector<Extents>(const Sizes&)> elements(int64_t Sizes::*which) {
  return [which](const Sizes& sizes) -> std::vector<Extents> { return {{sizes.*which}}; };
}

std::function<std::vector<Tensor>(const Operands&, const Extents&)> variables_in(
    std::vector<std::pair<double, double>> ranges) {
  return [ranges = std::move(ranges)](const Operands& operands, const Extents& e) {
    std::vector<Tensor> variables;
    for (const auto& [low, high] : ranges)
      variables.push_back(operands.random({e[0]}, variables.size() + 1, low, high));
    return variables;
  };
}

Op unary_op(const std::string& name, UnaryOp op) {
  const auto forward = calls(kernels::unary, [op](auto& operands, auto& e) {
    const auto [low, high] = domain_of(op);
    return Unary{.op = op,
                 .x = operands.random({e[0]}, 1, low, high),
                 .y = operands.zeros({e[0]}),
                 .p = p,
                 .q = q};
  });
  const auto backward = calls(kernels::unary_backward, [op](auto& operands, auto& e) {
    const auto [low, high] = reads_result(op) ? result_of(op) : domain_of(op);
    const Tensor read = operands.random({e[0]}, 2, low, high);
    return UnaryBackward{.op = op,
                         .x = reads_result(op) ? Tensor() : read,
                         .y = reads_result(op) ? read : Tensor(),
                         .dy = operands.random({e[0]}, 3),
                         .dx = operands.zeros({e[0]}),
                         .p = p,
                         .q = q};
  });
  // cosh squares an exp that may be 3 ulp off, as OpenCL allows; so does the slope of sinh.
  const bool squares = op == UnaryOp::cosh || op == UnaryOp::sinh;
  const auto error = squares ? roundings(16.0, 16.0) : few_roundings;
  Op row{.name = name,
         .kernels = {{.call = forward, .work = element_work(name, 4.0, 1, 1), .error = error},
                     {.call = backward, .error = error}},
         .tested = tested_lengths};
  const auto [low, high] = domain_of(op);
  row.function = [op](std::span<const Var> in, const Extents&) { return unary_of(op, in[0]); };
  row.variables = variables_in({{low, high}});
  return row;
}

Op binary_op(const std::string& name, BinaryOp op) {
  const auto forward = calls(kernels::binary, [op](auto& operands, auto& e) {
    const Shape shape{e[0]};
    return Binary{.op = op,
                  .a = operands.random(shape, 1, 0.5, 2.0),
                  .b = operands.random(shape, 2, 0.5, 2.0),
                  .y = is_comparison(op) ? Tensor::zeros(shape, DType::boolean, operands.device)
                                         : operands.zeros(shape)};
  });
  const auto backward = calls(kernels::binary_backward, [op](auto& operands, auto& e) {
    return BinaryBackward{.op = op,
                          .a = operands.random({e[0]}, 1, 0.5, 2.0),
                          .b = operands.random({e[0]}, 2, 0.5, 2.0),
                          .dy = operands.random({e[0]}, 3),
                          .da = operands.zeros({e[0]}),
                          .db = operands.zeros({e[0]})};
  });
  Op row{.name = name,
         .kernels = {{.call = forward, .work = element_work(name, 1.0, 2, 1)}},
         .tested = tested_lengths};
  if (is_comparison(op)) return row;
  row.kernels.front().error = few_roundings;
  // Five roundings of partial results up to 4 |dy|; a GPU's power may be off by four more.
  row.kernels.push_back({.call = backward, .error = roundings(36.0)});
  row.function = [op](std::span<const Var> in, const Extents&) {
    return binary_of(op, in[0], in[1]);
  };
  row.variables = variables_in({{0.5, 2.0}, {0.5, 2.0}});
  return row;
}

OpFamily unary_ops() {
  OpFamily rows;
  const auto add_row = [&](const char* name, UnaryOp op) {
    for (const UnaryOp timed : timed_unary_ops)
      if (timed == op) return;
    rows.push_back(unary_op(name, op));
  };
#define ZG_UNARY(name, ...) add_row(#name, UnaryOp::name);
#include "zerograd/kernels/elementwise/formulas.inc"
  return rows;
}

OpFamily binary_ops() {
  return {binary_op("subtract", BinaryOp::subtract),
          binary_op("multiply", BinaryOp::multiply),
          binary_op("divide", BinaryOp::divide),
          binary_op("power", BinaryOp::power),
          binary_op("maximum", BinaryOp::maximum),
          binary_op("minimum", BinaryOp::minimum),
          binary_op("logaddexp", BinaryOp::logaddexp),
          binary_op("remainder", BinaryOp::remainder),
          binary_op("equal", BinaryOp::equal),
          binary_op("not_equal", BinaryOp::not_equal),
          binary_op("less", BinaryOp::less),
          binary_op("less_equal", BinaryOp::less_equal),
          binary_op("greater", BinaryOp::greater),
          binary_op("greater_equal", BinaryOp::greater_equal)};
}

}  // namespace zg::bench

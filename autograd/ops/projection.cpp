#include "zerograd/autograd/ops/projection.h"

#include <string>

#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/operand.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/error.h"

namespace zg {

Projection projection_of(const ProjectionNames& names, const Tensor& x, const Tensor& weight,
                         const Tensor& bias) {
  const auto& [op, x_name, weight_name, bias_name] = names;
  check_rank(op, x_name, x, 1);
  check_alike(op, x_name, x, weight_name, weight);
  if (weight.shape().rank() != 2)
    refuse_shape(op, weight_name, weight.shape(), "rank 2: [out, in]");
  if (x.extent(-1) != weight.extent(1))
    throw ShapeError(std::string(op) + ": " + weight_name + " " + weight.shape().str() +
                     " does not match " + x_name + " " + x.shape().str() +
                     "; expected a last axis of " + x_name + " of " +
                     std::to_string(weight.extent(1)) + ", got " + std::to_string(x.extent(-1)));
  if (bias) {
    check_alike(op, x_name, x, bias_name, bias);
    const Shape expected{weight.extent(0)};
    if (bias.shape() != expected) refuse_shape(op, bias_name, bias.shape(), expected.str());
  }
  return {.rows = rows_of(x.shape())[0], .in = weight.extent(1), .out = weight.extent(0)};
}

void project(const Projection& p, const ProjectionForward& forward) {
  kernels::matmul({.a = forward.x,
                   .b = forward.weight,
                   .c = forward.y,
                   .M = p.rows,
                   .N = p.out,
                   .K = p.in,
                   .transpose_b = true,
                   .bias = forward.bias,
                   .activation = forward.activation,
                   .pre_activation = forward.before},
                  forward.y.device().compute());
}

void project_back(const Projection& p, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                  Stream& stream) {
  kernels::matmul({.a = dy, .b = weight, .c = dx, .M = p.rows, .N = p.in, .K = p.out}, stream);
}

void accumulate_weight(const Projection& p, const BackwardPass& pass, int weight, const Tensor& dy,
                       const Tensor& x) {
  const InputGradient dweight(pass, weight);
  if (!dweight) return;
  kernels::matmul({.a = dy,
                   .b = x,
                   .c = dweight.tensor(),
                   .M = p.out,
                   .N = p.in,
                   .K = p.rows,
                   .transpose_a = true},
                  pass.stream());
  dweight.accumulate();
}

void accumulate_bias(const BackwardPass& pass, int bias, const Tensor& dy) {
  const InputGradient dbias(pass, bias);
  if (!dbias) return;
  kernels::reduce({ReduceOp::sum, dy, dbias.tensor(), 1u << 0}, pass.stream());
  dbias.accumulate();
}

}  // namespace zg

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/operand.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/elementwise/gelu.h"

namespace zg {
namespace {

/// Keeps the one tensor that the derivative is made from: the result or the operand.
Var mapped(const char* name, UnaryOp op, const Var& x) {
  const Tensor values = floating_operand(name, "x", x);
  const Tensor y = empty_like(values);
  kernels::unary({op, values, y}, y.device().compute());
  return record(name, {x}, y, {reads_result(op) ? y : values}, op,
                [](UnaryOp unary, const BackwardPass& pass) {
                  const Tensor& dy = pass.gradient_of_output();
                  const Tensor kept = pass.saved(0);
                  const InputGradient dx(pass, 0, dy.dtype());
                  const bool result = reads_result(unary);
                  kernels::unary_backward({.op = unary,
                                           .x = result ? Tensor() : kept,
                                           .y = result ? kept : Tensor(),
                                           .dy = dy,
                                           .dx = dx.tensor()},
                                          pass.stream());
                  dx.accumulate();
                });
}

}  // namespace

Var exp(const Var& x) { return mapped("exp", UnaryOp::exp, x); }
Var log(const Var& x) { return mapped("log", UnaryOp::log, x); }
Var sqrt(const Var& x) { return mapped("sqrt", UnaryOp::sqrt, x); }
Var tanh(const Var& x) { return mapped("tanh", UnaryOp::tanh, x); }
Var sigmoid(const Var& x) { return mapped("sigmoid", UnaryOp::sigmoid, x); }
Var relu(const Var& x) { return mapped("relu", UnaryOp::relu, x); }
Var silu(const Var& x) { return mapped("silu", UnaryOp::silu, x); }

Var gelu(const Var& x, Activation form) {
  const Tensor values = floating_operand("gelu", "x", x);
  if (form == Activation::none)
    throw ConfigError("gelu: the form is none; expected gelu_tanh or gelu_erf");
  const Tensor y = empty_like(values);
  kernels::gelu_forward({values, y, form}, y.device().compute());
  return record("gelu", {x}, y, {values}, form, [](Activation kind, const BackwardPass& pass) {
    const Tensor& dy = pass.gradient_of_output();
    const InputGradient dx(pass, 0, dy.dtype());
    kernels::gelu_backward({dy, pass.saved(0), dx.tensor(), kind}, pass.stream());
    dx.accumulate();
  });
}

}  // namespace zg

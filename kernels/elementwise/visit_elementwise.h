#pragma once

#include "zerograd/kernels/elementwise/elementwise.h"

// From an op known at run time to one known at compile time, for every backend:
// f.template operator()<op>().
namespace zg {

/// Calls f with the one of the ops that `op` is, or else with the last one.
template <auto first, auto... others, class F>
void visit_op(decltype(first) op, const F& f) {
  if constexpr (sizeof...(others) > 0)
    if (op != first) return visit_op<others...>(op, f);
  f.template operator()<first>();
}

template <class F>
void visit_unary(UnaryOp op, const F& f) {
  using Op = UnaryOp;
  visit_op<Op::negate, Op::exp, Op::log, Op::sqrt, Op::tanh, Op::sigmoid, Op::relu, Op::silu,
           Op::abs, Op::reciprocal, Op::sin, Op::cos, Op::erf, Op::log1p>(op, f);
}

template <class F>
void visit_arithmetic(BinaryOp op, const F& f) {
  using B = BinaryOp;
  visit_op<B::add, B::subtract, B::multiply, B::divide, B::power, B::maximum, B::minimum>(op, f);
}

template <class F>
void visit_comparison(BinaryOp op, const F& f) {
  using B = BinaryOp;
  visit_op<B::equal, B::not_equal, B::less, B::less_equal, B::greater, B::greater_equal>(op, f);
}

}  // namespace zg

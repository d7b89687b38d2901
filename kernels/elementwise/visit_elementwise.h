#pragma once

#include <cstdlib>

#include "zerograd/kernels/elementwise/elementwise.h"

// From an op known at run time to one known at compile time, for every backend:
// f.template operator()<op>().
namespace zg {

/// Calls f with the one of the ops that `op` is.
template <auto first, auto... others, class F>
void visit_op(decltype(first) op, const F& f) {
  if (op == first) return f.template operator()<first>();
  if constexpr (sizeof...(others) > 0) return visit_op<others...>(op, f);
  std::abort();  // an op that the lists below do not have
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

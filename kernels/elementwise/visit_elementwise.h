#pragma once

#include "zerograd/kernels/elementwise/elementwise.h"

// From an op known at run time to one known at compile time, for every backend:
// f.template operator()<op>().
namespace zg {

template <class F>
void visit_unary(UnaryOp op, const F& f) {
  switch (op) {
    case UnaryOp::negate:
      return f.template operator()<UnaryOp::negate>();
    case UnaryOp::exp:
      return f.template operator()<UnaryOp::exp>();
    case UnaryOp::log:
      return f.template operator()<UnaryOp::log>();
    case UnaryOp::sqrt:
      return f.template operator()<UnaryOp::sqrt>();
    case UnaryOp::tanh:
      return f.template operator()<UnaryOp::tanh>();
    case UnaryOp::sigmoid:
      return f.template operator()<UnaryOp::sigmoid>();
    case UnaryOp::relu:
      return f.template operator()<UnaryOp::relu>();
    case UnaryOp::silu:
      return f.template operator()<UnaryOp::silu>();
    case UnaryOp::abs:
      return f.template operator()<UnaryOp::abs>();
    case UnaryOp::reciprocal:
      return f.template operator()<UnaryOp::reciprocal>();
    case UnaryOp::sin:
      return f.template operator()<UnaryOp::sin>();
    case UnaryOp::cos:
      return f.template operator()<UnaryOp::cos>();
    case UnaryOp::erf:
      return f.template operator()<UnaryOp::erf>();
    case UnaryOp::log1p:
      return f.template operator()<UnaryOp::log1p>();
  }
}

template <class F>
void visit_arithmetic(BinaryOp op, const F& f) {
  switch (op) {
    case BinaryOp::add:
      return f.template operator()<BinaryOp::add>();
    case BinaryOp::subtract:
      return f.template operator()<BinaryOp::subtract>();
    case BinaryOp::multiply:
      return f.template operator()<BinaryOp::multiply>();
    case BinaryOp::divide:
      return f.template operator()<BinaryOp::divide>();
    case BinaryOp::power:
      return f.template operator()<BinaryOp::power>();
    case BinaryOp::maximum:
      return f.template operator()<BinaryOp::maximum>();
    default:
      return f.template operator()<BinaryOp::minimum>();
  }
}

template <class F>
void visit_comparison(BinaryOp op, const F& f) {
  switch (op) {
    case BinaryOp::equal:
      return f.template operator()<BinaryOp::equal>();
    case BinaryOp::not_equal:
      return f.template operator()<BinaryOp::not_equal>();
    case BinaryOp::less:
      return f.template operator()<BinaryOp::less>();
    case BinaryOp::less_equal:
      return f.template operator()<BinaryOp::less_equal>();
    case BinaryOp::greater:
      return f.template operator()<BinaryOp::greater>();
    default:
      return f.template operator()<BinaryOp::greater_equal>();
  }
}

}  // namespace zg

#pragma once

#include <cstdlib>

#include "zerograd/kernels/elementwise/elementwise.h"

// From an op known at run time to one known at compile time, for every backend:
// f.template operator()<op>().
namespace zg {

template <class F>
void visit_unary(UnaryOp op, const F& f) {
  switch (op) {
#define ZG_UNARY(name, ...) \
  case UnaryOp::name:       \
    return f.template operator()<UnaryOp::name>();
#include "zerograd/kernels/elementwise/formulas.inc"
  }
  std::abort();  // no value of UnaryOp
}

template <class F>
void visit_arithmetic(BinaryOp op, const F& f) {
#define ZG_BINARY(name, ...) \
  if (op == BinaryOp::name) return f.template operator()<BinaryOp::name>();
#include "zerograd/kernels/elementwise/formulas.inc"
  std::abort();  // a comparison
}

template <class F>
void visit_comparison(BinaryOp op, const F& f) {
#define ZG_COMPARISON(name, ...) \
  if (op == BinaryOp::name) return f.template operator()<BinaryOp::name>();
#include "zerograd/kernels/elementwise/formulas.inc"
  std::abort();  // arithmetic
}

}  // namespace zg

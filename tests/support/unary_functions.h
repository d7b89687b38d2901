#pragma once

#include <cmath>

#include "zerograd/kernels/elementwise/elementwise.h"

namespace zg::testing {

/// The numbers of UnaryOp's functions that have some.
inline constexpr double unary_p = 0.25, unary_q = 1.5;
/// The functions of UnaryOp, in its order, in double: what a kernel and an op must give.
struct UnaryFunction {
  double (*value)(double);
  double low = -3, high = 3;  ///< the inputs of tests, which exclude numbers near poles
};
inline const UnaryFunction unary_functions[] = {
    {[](double x) { return -x; }},
    {[](double x) { return std::exp(x); }},
    {[](double x) { return std::log(x); }, 0.25},
    {[](double x) { return std::sqrt(x); }, 0.25},
    {[](double x) { return std::tanh(x); }},
    {[](double x) { return 1 / (1 + std::exp(-x)); }},
    {[](double x) { return x > 0 ? x : 0; }},
    {[](double x) { return x / (1 + std::exp(-x)); }},
    {[](double x) { return std::fabs(x); }},
    {[](double x) { return 1 / x; }, 0.25},
    {[](double x) { return std::sin(x); }},
    {[](double x) { return std::cos(x); }},
    {[](double x) { return std::erf(x); }},
    {[](double x) { return std::log1p(x); }, -0.75},
    {[](double x) { return std::floor(x); }},
    {[](double x) { return std::ceil(x); }},
    {[](double x) { return std::rint(x); }},
    {[](double x) { return x > 0   ? 1.0
                           : x < 0 ? -1.0
                                   : 0.0; }},
    {[](double x) { return x * x; }},
    {[](double x) { return std::expm1(x); }},
    {[](double x) { return std::log2(x); }, 0.25},
    {[](double x) { return std::log(1 + std::exp(x)); }},
    {[](double x) { return x * std::fmin(std::fmax(x + 3, 0), 6) / 6; }, -5, 5},
    {[](double x) { return std::tan(x); }, -1.2, 1.2},
    {[](double x) { return std::asin(x); }, -0.9, 0.9},
    {[](double x) { return std::acos(x); }, -0.9, 0.9},
    {[](double x) { return std::atan(x); }},
    {[](double x) { return std::sinh(x); }},
    {[](double x) { return std::cosh(x); }},
    {[](double x) { return std::fmin(std::fmax(x, unary_p), unary_q); }},
    {[](double x) { return x > 0 ? x : unary_p * std::expm1(x); }},
    {[](double x) { return x > 0 ? x : unary_p * x; }},
};
static_assert(std::size(unary_functions) == unary_op_count);

}  // namespace zg::testing

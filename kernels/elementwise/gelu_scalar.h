#pragma once

#include <cmath>
#include <numbers>

#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/runtime/portable_math.h"

// GELU in plain C++, for f64.
// kernels/elementwise/gelu_simd.h has the same functions on vectors of f32; tests compare both with
// formulas in double. T is float or double, the type of the arithmetic.
namespace zg::cpu {

/// The tanh form is x (1 + tanh u) / 2 = x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
/// For one x: open = sigmoid(2u), closed = 1 - sigmoid(2u), slope = d(2u)/dx.
template <class T>
struct TanhGate {
  T open, closed, slope;

  explicit TanhGate(T x) {
    const T root = std::sqrt(T(8) * std::numbers::inv_pi_v<T>);  // 2 sqrt(2 / pi)
    const T argument = root * x * (T(1) + T(0.044715) * x * x);
    // open + closed = 1. The smaller of the two is not computed as 1 - larger, so it loses no
    // digits to cancellation.
    const T e = portable::exp(-std::fabs(argument));
    const T large = T(1) / (T(1) + e), small = e * large;
    open = argument < T(0) ? small : large;
    closed = argument < T(0) ? large : small;
    slope = root * (T(1) + T(3 * 0.044715) * x * x);
  }
};

/// P(X <= x) of a standard normal X.
template <class T>
T normal_cdf(T x) {
  return T(0.5) * portable::erfc(x * T(-0.5) * std::numbers::sqrt2_v<T>);
}

template <class T>
T gelu(T x, Activation form) {
  return form == Activation::gelu_tanh ? x * TanhGate<T>(x).open : x * normal_cdf(x);
}

template <class T>
T gelu_derivative(T x, Activation form) {
  if (form == Activation::gelu_tanh) {
    const TanhGate<T> gate(x);
    return gate.open + x * gate.open * gate.closed * gate.slope;
  }
  const T inv_sqrt_two_pi = T(0.5) * std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>;
  return normal_cdf(x) + x * portable::exp(T(-0.5) * x * x) * inv_sqrt_two_pi;
}

}  // namespace zg::cpu

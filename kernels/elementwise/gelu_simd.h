#pragma once

#include "zerograd/kernels/cpu/simd.h"

// GELU for the *_simd.cpp sources. Hendrycks, Gimpel 2016, arXiv:1606.08415. A constant is that of
// f64; vectors of f32 round it.
namespace zg::cpu {
namespace {

/// sigmoid(u), 1 - sigmoid(u), and du/dx for a function u of x. Both halves come from e^-|u|, so
/// that neither loses digits to cancellation.
template <class V>
struct Sigmoid {
  V open, closed, slope;

  [[gnu::always_inline]] inline Sigmoid(V u, V slope_of_u) : slope(slope_of_u) {
    const V e = exp(-abs(u)), large = 1.0 / (1.0 + e), small = e * large;
    const auto negative = u < 0.0;
    open = select(negative, small, large);
    closed = select(negative, large, small);
  }
  /// The derivative of x sigmoid(u).
  [[gnu::always_inline]] inline V derivative(V x) const {
    return fma(x * open, closed * slope, open);
  }
};

/// The tanh form is x (1 + tanh u) / 2 = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). Inlined,
/// like normal(): a call would pass vectors through memory.
template <class V>
[[gnu::always_inline]] inline Sigmoid<V> tanh_gate(V x) {
  const V root = 1.5957691216057308, square = x * x;  // 2 sqrt(2 / pi)
  return {root * x * fma(0.044715, square, 1.0), root * fma(0.134145, square, 1.0)};
}
template <class V>
[[gnu::always_inline]] inline V gelu_tanh(V x) {
  return x * tanh_gate(x).open;
}

/// P(X <= x) = (1 + erf(x / sqrt 2)) / 2 of a standard normal X, and e^(-x^2 / 2).
template <class V>
struct Normal {
  V cdf, bell;
};

/// Coefficients of a polynomial, constant first, by Horner's rule.
template <int n>
inline Vec polynomial(Vec x, const float (&coefficients)[n]) {
  Vec p = coefficients[n - 1];
  for (int i = n - 2; i >= 0; --i) p = fma(p, x, coefficients[i]);
  return p;
}

/// Near zero the cdf is 1/2 + x q(x^2). Elsewhere its tail is e^(-x^2/2) t p(2t - 1) with t = 1 /
/// (1 + 0.3 |x|); p is smooth, because it approximates the rest of Mills' ratio. q and p are
/// Chebyshev interpolants with relative errors of 1.4e-8 and 6e-8. So the tail is precise relative
/// to its size (except for the rounding of x^2 / 2), and cdf is within 7e-8, one ulp below 1.
[[gnu::always_inline]] inline Normal<Vec> normal(Vec x) {
  constexpr float q[] = {0.398942292f,    -0.0664903745f,   0.00997350179f, -0.00118711544f,
                         0.000115039315f, -9.06247169e-06f, 4.7692788e-07f};
  constexpr float p[] = {0.221970618f,    0.164579555f,     0.0865496472f,    0.0277590435f,
                         0.00181694457f,  -0.00241627009f,  -0.000574590231f, 0.000265158364f,
                         8.78361898e-05f, -2.88273586e-05f, -9.11022562e-06f};
  const Vec z = abs(x), square = x * x;
  const Vec t = 1.0 / fma(0.3f, z, 1.0);
  const Vec bell = exp(-0.5 * square);
  const Vec tail = bell * t * polynomial(t + t - 1.0, p);
  const Vec cdf = select(x < 0.0, tail, 1.0 - tail);
  return {select(z < 1.25, fma(x, polynomial(square, q), 0.5), cdf), bell};
}
inline Normal<double> normal(double x) {
  return {0.5 * portable::erfc(x * -0.7071067811865476), exp(-0.5 * x * x)};
}

template <class V>
[[gnu::always_inline]] inline V gelu_erf(V x) {
  return x * normal(x).cdf;
}

}  // namespace
}  // namespace zg::cpu

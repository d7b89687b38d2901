#pragma once

#include "zerograd/kernels/cpu/simd.h"

// GELU on vectors of f32, for the *_simd.cpp sources; kernels/elementwise/gelu_scalar.h is the same
// in plain C++. Hendrycks, Gimpel 2016, arXiv:1606.08415.
namespace zg::cpu {
namespace {

/// The tanh form is x (1 + tanh u) / 2 = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). This has
/// sigmoid(2u), 1 - sigmoid(2u) and d(2u)/dx at x.
struct TanhGate {
  Vec open, closed, slope;
};

/// Inlined, like normal(): a call would pass vectors through memory.
[[gnu::always_inline]] inline TanhGate tanh_gate(Vec x) {
  const Vec root = set1(1.59576912160573071f);  // 2 sqrt(2 / pi)
  const Vec square = x * x, zero = set1(0.0f), one = set1(1.0f);
  const Vec argument = root * x * fma(set1(0.044715f), square, one);
  // open + closed = 1. The smaller of the two is not computed as 1 - larger, so it loses no digits
  // to cancellation.
  const Vec e = exp(zero - abs(argument));
  const Vec large = one / (one + e), small = e * large;
  const Mask negative = less(argument, zero);
  return {select(negative, small, large), select(negative, large, small),
          root * fma(set1(0.134145f), square, one)};
}

[[gnu::always_inline]] inline Vec gelu_tanh(Vec x) { return x * tanh_gate(x).open; }
[[gnu::always_inline]] inline Vec gelu_tanh_derivative(Vec x) {
  const TanhGate gate = tanh_gate(x);
  return fma(x * gate.open, gate.closed * gate.slope, gate.open);
}

/// P(X <= x) = (1 + erf(x / sqrt 2)) / 2 of a standard normal X, and e^(-x^2 / 2).
struct Normal {
  Vec cdf, bell;
};

/// Coefficients of a polynomial, constant first, by Horner's rule.
template <int n>
inline Vec polynomial(Vec x, const float (&coefficients)[n]) {
  Vec p = set1(coefficients[n - 1]);
  for (int i = n - 2; i >= 0; --i) p = fma(p, x, set1(coefficients[i]));
  return p;
}

/// Near zero the cdf is 1/2 + x q(x^2). Elsewhere its tail is e^(-x^2/2) t p(2t - 1) with t = 1 /
/// (1 + 0.3 |x|); p is smooth, because it approximates the rest of Mills' ratio. q and p are
/// Chebyshev interpolants with relative errors of 1.4e-8 and 6e-8. So the tail is precise relative
/// to its size (except for the rounding of x^2 / 2), and cdf is within 7e-8, one ulp below 1.
[[gnu::always_inline]] inline Normal normal(Vec x) {
  constexpr float q[] = {0.398942292f,    -0.0664903745f,   0.00997350179f, -0.00118711544f,
                         0.000115039315f, -9.06247169e-06f, 4.7692788e-07f};
  constexpr float p[] = {0.221970618f,    0.164579555f,     0.0865496472f,    0.0277590435f,
                         0.00181694457f,  -0.00241627009f,  -0.000574590231f, 0.000265158364f,
                         8.78361898e-05f, -2.88273586e-05f, -9.11022562e-06f};
  const Vec z = abs(x), one = set1(1.0f), half = set1(0.5f), square = x * x;
  const Vec t = one / fma(set1(0.3f), z, one);
  const Vec bell = exp(set1(-0.5f) * square);
  const Vec tail = bell * t * polynomial(t + t - one, p);
  const Vec cdf = select(less(x, set1(0.0f)), tail, one - tail);
  return {select(less(z, set1(1.25f)), fma(x, polynomial(square, q), half), cdf), bell};
}

[[gnu::always_inline]] inline Vec gelu_erf(Vec x) { return x * normal(x).cdf; }
[[gnu::always_inline]] inline Vec gelu_erf_derivative(Vec x) {
  const Normal n = normal(x);
  return fma(x * set1(0.398942280401432678f), n.bell, n.cdf);
}

}  // namespace
}  // namespace zg::cpu

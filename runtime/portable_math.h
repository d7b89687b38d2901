#pragma once
// Elementary functions whose bits are the same on every processor and with every C library. They
// consist of additions, products, divisions, fma and bits of numbers, which IEEE 754 defines. The
// library uses no others (tests/check_symbols.py).
//
// An error is at most 1 ulp, of tanh, erf, erfc, expm1 and log2 at most 2 (measured in
// tests/runtime/portable_math_test.cpp: 1.5, 1.2, 1.7, 1.2, 1.7). Those of f32 are computed in f64
// and rounded, so their errors are at most 0.501 ulp. Special values are those of C (Annex F).

#include "zerograd/runtime/api.h"

namespace zg::portable {

ZG_API double exp(double x);
/// The natural logarithm; NaN below 0, -infinity at 0.
ZG_API double log(double x);
/// NaN for infinities; exact reduction for every finite x.
ZG_API double sin(double x);
ZG_API double cos(double x);
ZG_API double tanh(double x);
ZG_API double erf(double x);
ZG_API double erfc(double x);
ZG_API double exp2(double x);
ZG_API double expm1(double x);
ZG_API double log1p(double x);
ZG_API double log2(double x);
ZG_API double atan(double x);
ZG_API double pow(double x, double y);

ZG_API float exp(float x);
ZG_API float log(float x);
ZG_API float sin(float x);
ZG_API float cos(float x);
ZG_API float tanh(float x);
ZG_API float erf(float x);
ZG_API float erfc(float x);
ZG_API float expm1(float x);
ZG_API float log1p(float x);
ZG_API float pow(float x, float y);

}  // namespace zg::portable

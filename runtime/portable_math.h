#pragma once
// Elementary functions whose bits are the same on every processor and with every C library. They
// consist of additions, products, divisions, fma, floor and ldexp, which IEEE 754 defines to the
// last bit. Use them where a result reaches parameters: initial values, tables of angles.
//
// Each takes and returns f64. An error is at most 1 ulp (measured in
// tests/runtime/portable_math_test.cpp). Special values are those of C (Annex F).

#include "zerograd/runtime/api.h"

namespace zg::portable {

ZG_API double exp(double x);
/// The natural logarithm; NaN below 0, -infinity at 0.
ZG_API double log(double x);
/// NaN for infinities; exact reduction for every finite x.
ZG_API double sin(double x);
ZG_API double cos(double x);
ZG_API double pow(double x, double y);

}  // namespace zg::portable

#include "zerograd/runtime/portable_math.h"

#include <cmath>
#include <initializer_list>

#include "zerograd/runtime/portable_templates.h"

namespace zg::portable {

namespace {

Two<double> product(const Two<double>& a, const Two<double>& b) {
  const Two p = product(a.high, b.high);
  return ordered_sum(p.high, p.low + (a.high * b.low + a.low * b.high));
}

constexpr double ln2_rest = 0x1.cc01f97b57a08p-87;

/// 2 atanh(s) = 2 (s + s^3 / 3 + ...) is the logarithm of (1 + s) / (1 - s): of m for s = (m - 1) /
/// (m + 1).
Two<double> precise_log(double x) {
  constexpr Terms terms = inverse_odds<10>(5);
  constexpr Two third{0x1.5555555555555p-2, 0x1.5555555555555p-56};
  const auto [m, k] = Split(x);
  const double f = m - 1, below = 2 + f, lost = f - (below - 2);
  const Two<double> ratio = quotient(Two{f, 0.0}, {below, lost});
  const Two<double> square = product(ratio, ratio);
  const Two<double> cubic = product(product(square, ratio), third);
  const double rest = ratio.high * square.high * square.high * polynomial(terms, square.high);
  const Two<double> series = sum(2 * ratio.high, 2 * cubic.high);
  const double low = series.low + 2 * (ratio.low + cubic.low + rest);
  const Two<double> whole = sum(k * ln2.high, series.high);
  const Two<double> middle = product(k, ln2.low);
  const Two<double> both = sum(whole.high, middle.high);
  return ordered_sum(both.high, both.low + (whole.low + (low + (middle.low + k * ln2_rest))));
}

/// For x >= 2^20: the product with 2 / pi modulo 4, of the 192 bits of 2 / pi that matter (Payne
/// and Hanek).
Angle<double> reduced_large(double x) {
  __extension__ using Wide = unsigned __int128;
  // 64 zero bits, then the fraction of 2 / pi.
  static constexpr uint64_t bits[] = {0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0,
                                      0xdb6295993c439041, 0xfe5163abdebbc561, 0xb7246e3a424dd2e0,
                                      0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
                                      0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b,
                                      0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7,
                                      0x4f463f669e5fea2d, 0x7527bac7ebe5f17b, 0x3d0739f78a5292ea,
                                      0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};
  int exponent = 0;
  const auto mantissa = static_cast<uint64_t>(std::ldexp(std::frexp(x, &exponent), 53));
  const auto begin =
      static_cast<size_t>(exponent - 53 - 2 + 64);  // bits before give multiples of 4
  const auto word = [&](size_t i) {
    const size_t at = begin / 64 + i, shift = begin % 64;
    return shift == 0 ? bits[at] : bits[at] << shift | bits[at + 1] >> (64 - shift);
  };
  const Wide low = Wide{mantissa} * word(2), middle = Wide{mantissa} * word(1) + (low >> 64);
  uint64_t q[] = {mantissa * word(0) + static_cast<uint64_t>(middle >> 64),
                  static_cast<uint64_t>(middle), static_cast<uint64_t>(low)};
  // q / 2^190 is the angle in units of pi / 2. Its fraction, rounded to the nearest multiple:
  int quadrant = static_cast<int>(q[0] >> 62);
  const bool above = (q[0] >> 61 & 1) != 0;
  quadrant += above ? 1 : 0;
  q[0] &= (uint64_t{1} << 62) - 1;
  Two f{0.0, 0.0};
  double scale = 0x1p-30;  // of the upper half of q[0]
  if (above) f.high = -1;
  for (const uint64_t part : q)
    for (const uint64_t half : {part >> 32, part & 0xffffffff}) {
      const Two next = sum(f.high, static_cast<double>(half) * scale);
      f = {next.high, f.low + next.low};
      scale *= 0x1p-32;
    }
  f = sum(f.high, f.low);
  return {product(f, Two{0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54}),
          static_cast<uint64_t>(quadrant)};
}

/// The sine of x + quarters pi / 2.
double sine(double x, uint64_t quarters) {
  if (!std::isfinite(x)) return not_a_number;
  if (std::fabs(x) < small_angle) return reduced_small(x).sine(quarters);
  Angle<double> a = reduced_large(std::fabs(x));
  if (x < 0) a = {{-a.rest.high, -a.rest.low}, -a.quadrant};
  return a.sine(quarters);
}

}  // namespace

double exp(double x) { return exp_of(x); }
double log(double x) { return log_of(x); }
double log1p(double x) { return log1p_of(x); }
double log2(double x) { return log2_of(x); }
double expm1(double x) { return expm1_of(x); }
double atan(double x) { return atan_of(x); }

double tanh(double x) {
  if (x == 0 || std::isnan(x)) return x;
  if (std::fabs(x) > 22) return std::copysign(1.0, x);
  // With e = e^(2 x) - 1 = 2^k less_one: tanh(x) = e / (e + 2).
  const ExpParts e(2 * x, 0.0);
  const Two above = less_one(e), below = sum(scaled(2.0, -e.k), above.high);
  return quotient(above, {below.high, below.low + above.low}).high;
}

double erf(double x) { return erf_of(x); }
double erfc(double x) { return x >= erfc_begin ? erfc_of_large(x) : 1 - erf(x); }

double sin(double x) { return x == 0 ? x : sine(x, 0); }
double cos(double x) { return sine(x, 1); }

double pow(double x, double y) {
  return power_of(x, y, [y](double size) {
    const Two logarithm = precise_log(size);
    const double bounded = std::fmin(std::fmax(y, -0x1p80), 0x1p80);  // no product overflows
    const Two exponent = product(logarithm.high, bounded);
    return exp_of_sum(exponent.high, exponent.low + logarithm.low * bounded);
  });
}

double exp2(double x) { return pow(2, x); }

// clang-format off
float exp(float x) { return static_cast<float>(exp(double{x})); }
float expm1(float x) { return static_cast<float>(expm1(double{x})); }
float log(float x) { return static_cast<float>(log(double{x})); }
float log1p(float x) { return static_cast<float>(log1p(double{x})); }
float sin(float x) { return static_cast<float>(sin(double{x})); }
float cos(float x) { return static_cast<float>(cos(double{x})); }
float tanh(float x) { return static_cast<float>(tanh(double{x})); }
float erf(float x) { return static_cast<float>(erf(double{x})); }
float erfc(float x) { return static_cast<float>(erfc(double{x})); }
float pow(float x, float y) { return static_cast<float>(pow_of_f32(double{x}, double{y})); }
// clang-format on

}  // namespace zg::portable

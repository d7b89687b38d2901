// Methods: reduction of the argument (Cody and Waite; Payne and Hanek for large angles), then
// Taylor series, whose coefficients need no table: 1/n! and 1/n. "Two" is an unevaluated sum of two
// f64 with about 106 bits (Dekker, 1971).

#include "zerograd/runtime/portable_math.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace zg::portable {

namespace {

struct Two {
  double high, low;
};

/// a + b without error.
Two sum(double a, double b) {
  const double s = a + b, part = s - a;
  return {s, (a - (s - part)) + (b - part)};
}
/// The same if |a| >= |b|.
Two ordered_sum(double a, double b) {
  const double s = a + b;
  return {s, b - (s - a)};
}
/// a b without error.
Two product(double a, double b) {
  const double p = a * b;
  return {p, std::fma(a, b, -p)};
}
Two product(const Two& a, const Two& b) {
  const Two p = product(a.high, b.high);
  return ordered_sum(p.high, p.low + (a.high * b.low + a.low * b.high));
}

/// ln 2: `high` has 32 bits, so that k high is exact for exponents k.
constexpr Two ln2{0x1.62e42feep-1, 0x1.a39ef35793c76p-33};
constexpr double ln2_rest = 0x1.cc01f97b57a08p-87;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// c[0] + z (c[1] + z (c[2] + ...)).
template <size_t N>
constexpr double polynomial(const std::array<double, N>& c, double z) {
  double value = c[N - 1];
  for (size_t i = N - 1; i-- > 0;) value = value * z + c[i];
  return value;
}

/// sign^i / (first + i step)!.
template <size_t N>
constexpr std::array<double, N> inverse_factorials(int first, int step, double sign) {
  std::array<double, N> c{};
  double factorial = 1, signs = 1;
  int n = 0;
  for (size_t i = 0; i < N; ++i) {
    for (; n < first + static_cast<int>(i) * step; ++n) factorial *= n + 1;
    c[i] = signs / factorial;
    signs *= sign;
  }
  return c;
}

/// 1 / (first + 2 i).
template <size_t N>
constexpr std::array<double, N> inverse_odds(int first) {
  std::array<double, N> c{};
  for (size_t i = 0; i < N; ++i) c[i] = 1.0 / (first + 2.0 * static_cast<double>(i));
  return c;
}

/// exp(x + rest), where |rest| is far below 1.
double exp_of_sum(double x, double rest) {
  if (std::isnan(x)) return x;
  if (x > 710) return infinity;  // above ln of the largest f64, 709.78
  if (x < -746) return 0;        // below half of the smallest one, -745.13
  static constexpr auto terms = inverse_factorials<12>(2, 1, 1);
  const double k = std::floor(x * (1 / (ln2.high + ln2.low)) + 0.5);
  const double reduced = x - k * ln2.high;
  const Two r = sum(reduced, rest - k * ln2.low);
  const double small = r.low + r.high * r.high * polynomial(terms, r.high);
  return std::ldexp(1.0 + (r.high + small), static_cast<int>(k));
}

/// x = m 2^k with m in [sqrt(1/2), sqrt(2)), for finite x > 0.
struct Split {
  double m;
  int k;
};
Split split(double x) {
  int k = 0;
  double m = std::frexp(x, &k);
  if (m < 0x1.6a09e667f3bcdp-1) m *= 2, --k;
  return {m, k};
}

/// 2 atanh(s) = 2 (s + s^3 / 3 + ...) is the logarithm of (1 + s) / (1 - s): of m for s = (m - 1) /
/// (m + 1).
Two precise_log(double x) {
  static constexpr auto terms = inverse_odds<10>(5);
  static constexpr Two third{0x1.5555555555555p-2, 0x1.5555555555555p-56};
  const auto [m, k] = split(x);
  const double f = m - 1, below = 2 + f, lost = f - (below - 2);
  const double s = f / below;
  const Two back = product(s, below);
  const Two ratio = ordered_sum(s, ((f - back.high) - back.low - s * lost) / below);
  const Two square = product(ratio, ratio);
  const Two cubic = product(product(square, ratio), third);
  const double rest = ratio.high * square.high * square.high * polynomial(terms, square.high);
  const Two series = sum(2 * ratio.high, 2 * cubic.high);
  const double low = series.low + 2 * (ratio.low + cubic.low + rest);
  const Two whole = sum(k * ln2.high, series.high);
  const Two middle = product(k, ln2.low);
  const Two both = sum(whole.high, middle.high);
  return ordered_sum(both.high, both.low + (whole.low + (low + (middle.low + k * ln2_rest))));
}

/// An angle less n pi / 2, at most about pi / 4, and n modulo 4.
struct Angle {
  Two rest;
  int quadrant;
};

/// For |x| below 2^20: n times each of three parts of pi / 2, of 33 bits, is exact.
Angle reduced_small(double x) {
  const double n = std::floor(x * 0x1.45f306dc9c883p-1 + 0.5);
  const Two a = sum(x - n * 0x1.921fb544p+0, -n * 0x1.0b4611a6p-34);
  const Two b = sum(a.high, -n * 0x1.3198a2ep-69);
  const Two rest = ordered_sum(b.high, b.low + (a.low - n * 0x1.b839a252049c1p-104));
  return {rest, static_cast<int>(static_cast<int64_t>(n) & 3)};
}

/// For x >= 2^20: the product with 2 / pi modulo 4, of the 192 bits of 2 / pi that matter (Payne
/// and Hanek).
Angle reduced_large(double x) {
  __extension__ using Wide = unsigned __int128;
  // 64 zero bits, then the fraction of 2 / pi.
  static constexpr std::array<uint64_t, 21> bits = {0,
                                                    0xa2f9836e4e441529,
                                                    0xfc2757d1f534ddc0,
                                                    0xdb6295993c439041,
                                                    0xfe5163abdebbc561,
                                                    0xb7246e3a424dd2e0,
                                                    0x06492eea09d1921c,
                                                    0xfe1deb1cb129a73e,
                                                    0xe88235f52ebb4484,
                                                    0xe99c7026b45f7e41,
                                                    0x3991d639835339f4,
                                                    0x9c845f8bbdf9283b,
                                                    0x1ff897ffde05980f,
                                                    0xef2f118b5a0a6d1f,
                                                    0x6d367ecf27cb09b7,
                                                    0x4f463f669e5fea2d,
                                                    0x7527bac7ebe5f17b,
                                                    0x3d0739f78a5292ea,
                                                    0x6bfb5fb11f8d5d08,
                                                    0x56033046fc7b6bab,
                                                    0xf0cfbc209af4361d};
  int exponent = 0;
  const auto mantissa = static_cast<uint64_t>(std::ldexp(std::frexp(x, &exponent), 53));
  const auto begin =
      static_cast<size_t>(exponent - 53 - 2 + 64);  // bits before give multiples of 4
  const auto word = [&](size_t i) {
    const size_t at = begin / 64 + i, shift = begin % 64;
    return shift == 0 ? bits[at] : bits[at] << shift | bits[at + 1] >> (64 - shift);
  };
  const Wide low = Wide{mantissa} * word(2), middle = Wide{mantissa} * word(1) + (low >> 64);
  std::array<uint64_t, 3> q = {mantissa * word(0) + static_cast<uint64_t>(middle >> 64),
                               static_cast<uint64_t>(middle), static_cast<uint64_t>(low)};
  // q / 2^190 is the angle in units of pi / 2. Its fraction, rounded to the nearest multiple:
  int quadrant = static_cast<int>(q[0] >> 62);
  const bool above = (q[0] >> 61 & 1) != 0;
  quadrant += above ? 1 : 0;
  q[0] &= (uint64_t{1} << 62) - 1;
  Two f{0, 0};
  double scale = 0x1p-30;  // of the upper half of q[0]
  if (above) f.high = -1;
  for (const uint64_t part : q)
    for (const uint64_t half : {part >> 32, part & 0xffffffff}) {
      const Two next = sum(f.high, static_cast<double>(half) * scale);
      f = {next.high, f.low + next.low};
      scale *= 0x1p-32;
    }
  f = sum(f.high, f.low);
  return {product(f, Two{0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54}), quadrant & 3};
}

double sin_of(const Two& x) {
  static constexpr auto terms = inverse_factorials<7>(5, 2, -1);
  const double z = x.high * x.high, cube = z * x.high;
  const double r = polynomial(terms, z);
  return x.high - ((z * (0.5 * x.low - cube * r) - x.low) + cube * (1.0 / 6));
}

double cos_of(const Two& x) {
  static constexpr auto terms = inverse_factorials<8>(4, 2, -1);
  const double z = x.high * x.high, half = 0.5 * z, w = 1 - half;
  return w + (((1 - w) - half) + (z * z * polynomial(terms, z) - x.high * x.low));
}

/// The sine of x + quarters pi / 2.
double sine(double x, int quarters) {
  if (!std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
  const bool is_large = std::fabs(x) >= 0x1p20;
  Angle a = is_large ? reduced_large(std::fabs(x)) : reduced_small(x);
  if (is_large && x < 0) a = {{-a.rest.high, -a.rest.low}, -a.quadrant};
  const int turn = (a.quadrant + quarters) & 3;
  const double value = turn % 2 == 0 ? sin_of(a.rest) : cos_of(a.rest);
  return turn < 2 ? value : -value;
}

}  // namespace

double exp(double x) { return exp_of_sum(x, 0); }

double log(double x) {
  if (std::isnan(x) || x == infinity) return x;
  if (x == 0) return -infinity;
  if (x < 0) return std::numeric_limits<double>::quiet_NaN();
  static constexpr auto terms = inverse_odds<10>(3);
  const auto [m, k] = split(x);
  const double f = m - 1, s = f / (2 + f), z = s * s, half = 0.5 * f * f;
  // 2 atanh(s) = f - f^2 / 2 + s (f^2 / 2 + 2 (z / 3 + z^2 / 5 + ...)); f is exact.
  const double tail = half - (s * (half + 2 * z * polynomial(terms, z)) + k * ln2.low);
  return k * ln2.high - (tail - f);
}

double sin(double x) { return x == 0 ? x : sine(x, 0); }
double cos(double x) { return sine(x, 1); }

double pow(double x, double y) {
  if (y == 0 || x == 1) return 1;
  if (std::isnan(x) || std::isnan(y)) return x + y;
  const bool is_whole = std::floor(y) == y, is_odd = std::fabs(std::fmod(y, 2)) == 1;
  const double sign = is_odd && std::signbit(x) ? -1 : 1, size = std::fabs(x);
  if (size == 1 && std::isinf(y)) return 1;
  if (size == 0 || std::isinf(x) || std::isinf(y)) {
    const bool grows = (size > 1) == (y > 0);
    return sign * (grows ? infinity : 0.0);
  }
  if (x < 0 && !is_whole) return std::numeric_limits<double>::quiet_NaN();
  if (size == 1) return sign;
  const Two logarithm = precise_log(size);
  const double bounded = std::fmin(std::fmax(y, -0x1p80), 0x1p80);  // no product overflows
  const Two exponent = product(logarithm.high, bounded);
  return sign * exp_of_sum(exponent.high, exponent.low + logarithm.low * bounded);
}

}  // namespace zg::portable

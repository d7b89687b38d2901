// Methods: reduction of the argument (Cody and Waite; Payne and Hanek for large angles), then
// Taylor series, whose coefficients need no table: 1/n! and 1/n. Only erfc has a table. "Two" is an
// unevaluated sum of two f64 with about 106 bits (Dekker, 1971).

#include "zerograd/runtime/portable_math.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>

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

/// The quotient, with an error of about 2^-104.
Two quotient(const Two& a, const Two& b) {
  const double q = a.high / b.high;
  const Two back = product(q, b.high);
  return ordered_sum(q, ((a.high - back.high) - back.low + (a.low - q * b.low)) / b.high);
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

/// x 2^k, rounded once, for |x| in [2^-60, 2^60].
double scaled(double x, int k) {
  const auto power = [](int e) {
    return std::bit_cast<double>(static_cast<uint64_t>(e + 1023) << 52);
  };
  return x * power(k / 2) * power(k - k / 2);
}

/// e^(x + rest) = 2^k (1 + high + low), for |rest| far below 1.
struct ExpParts {
  double high, low;
  int k;

  ExpParts(double x, double rest) {
    static constexpr auto terms = inverse_factorials<12>(2, 1, 1);
    constexpr double round = 0x1.8p52;  // to add it and take it away rounds to an integer
    const double whole = (x * (1 / (ln2.high + ln2.low)) + round) - round;
    const Two r = sum(x - whole * ln2.high, rest - whole * ln2.low);
    high = r.high;
    low = r.low + r.high * r.high * polynomial(terms, r.high);
    k = static_cast<int>(whole);
  }
  /// (e^(x + rest) - 1) / 2^k.
  Two less_one() const {
    const Two all = sum(1 - scaled(1, -k), high);
    return ordered_sum(all.high, all.low + low);
  }
};

double exp_of_sum(double x, double rest) {
  if (std::isnan(x)) return x;
  if (x > 710) return infinity;  // above ln of the largest f64, 709.78
  if (x < -746) return 0;        // below half of the smallest one, -745.13
  const ExpParts e(x, rest);
  return scaled(1.0 + (e.high + e.low), e.k);
}

/// x = m 2^k with m in [sqrt(1/2), sqrt(2)), for finite x > 0.
struct Split {
  double m;
  int k;
};
Split split(double x) {
  const int shift = x < 0x1p-1022 ? 54 : 0;
  const auto bits = std::bit_cast<uint64_t>(x * static_cast<double>(uint64_t{1} << shift));
  // The exponent less that of sqrt(1/2) is the part that becomes k.
  const auto above = static_cast<int64_t>(bits - std::bit_cast<uint64_t>(0x1.6a09e667f3bcdp-1));
  const int64_t k = above >> 52;
  return {std::bit_cast<double>(bits - (static_cast<uint64_t>(k) << 52)),
          static_cast<int>(k) - shift};
}

/// 2 atanh(s) = 2 (s + s^3 / 3 + ...) is the logarithm of (1 + s) / (1 - s): of m for s = (m - 1) /
/// (m + 1).
Two precise_log(double x) {
  static constexpr auto terms = inverse_odds<10>(5);
  static constexpr Two third{0x1.5555555555555p-2, 0x1.5555555555555p-56};
  const auto [m, k] = split(x);
  const double f = m - 1, below = 2 + f, lost = f - (below - 2);
  const Two ratio = quotient({f, 0}, {below, lost});
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

/// log(x) + rest, for |rest| far below 1.
double log_plus(double x, double rest) {
  if (std::isnan(x) || x == infinity) return x;
  if (x == 0) return -infinity;
  if (x < 0) return std::numeric_limits<double>::quiet_NaN();
  static constexpr auto terms = inverse_odds<10>(3);
  const auto [m, k] = split(x);
  const double f = m - 1, s = f / (2 + f), z = s * s, half = 0.5 * f * f;
  // 2 atanh(s) = f - f^2 / 2 + s (f^2 / 2 + 2 (z / 3 + z^2 / 5 + ...)); f is exact.
  const double tail = half - (s * (half + 2 * z * polynomial(terms, z)) + (k * ln2.low + rest));
  return k * ln2.high - (tail - f);
}

/// erf(x) = 2 / sqrt(pi) (x - x^3 / 3 + x^5 / (2! 5) - ...) = x + x (c[0] + c[1] x^2 + ...).
template <size_t N>
constexpr std::array<double, N> erf_terms() {
  std::array<double, N> c = inverse_factorials<N>(0, 1, -1);
  for (size_t i = 0; i < N; ++i)
    c[i] *= 2 * std::numbers::inv_sqrtpi / (2.0 * static_cast<double>(i) + 1);
  c[0] = 0x1.06eba8214db69p-3;  // 2 / sqrt(pi) - 1
  return c;
}

/// erfc(x) for x >= erfc_begin: (x + 1/2) e^(x^2) erfc(x) is a polynomial in q = 8.5 / (x + 3)
/// - 1.2669, which is within [-1, 1] up to x = 28 (after Shepherd and Laframboise, 1981). Its
/// coefficients are those of the Chebyshev series, computed with 300 bits; the error is 2^-56.7.
constexpr double erfc_begin = 0.75;
double erfc_of_large(double x) {
  if (x > 28) return 0;  // the smallest f64 is erfc(27.2)
  constexpr double first = 0x1.3cffcb1aaf6b2p-1;
  static constexpr std::array terms = {
      0x1.9a23e71ff16ebp-5,   -0x1.beb585ed6a079p-9,  -0x1.f144ce7fe2c52p-7,
      -0x1.620539f765b17p-7,  -0x1.35bca313d8a8fp-8,  -0x1.5ac7dea466d91p-10,
      -0x1.5c3d55d16a0afp-13, 0x1.21165bd0d1f34p-15,  0x1.29530bc1eec5bp-16,
      0x1.32e590aa7b837p-21,  -0x1.4c1fc507e38d3p-20, -0x1.61b1f63363671p-23,
      0x1.8b999b2324660p-24,  0x1.355224bdf976ap-26,  -0x1.175f35ad97754p-27,
      -0x1.c02823ca42d6cp-30, 0x1.af51585ce628fp-31,  0x1.09f5afd69be14p-33,
      -0x1.f0b6b169d6098p-35, -0x1.7bff00dd6a507p-38};
  const double q = 8.5 / (x + 3) - 1.2669;
  const Two ratio = quotient(ordered_sum(first, q * polynomial(terms, q)), sum(x, 0.5));
  const double upper = static_cast<float>(x);  // its square is exact
  const ExpParts e(-upper * upper, (upper - x) * (upper + x));
  const Two power = ordered_sum(1, e.high);
  const double low = ratio.high * (power.low + e.low) + ratio.low * power.high;
  return scaled(ratio.high * power.high + low, e.k);
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

/// x^y, where `of_positive` gives y-th powers of finite positive numbers other than 1.
template <class F>
double power(double x, double y, const F& of_positive) {
  if (y == 0 || x == 1) return 1;
  if (std::isnan(x) || std::isnan(y)) return x + y;
  const double size = std::fabs(x);
  const double sign = std::signbit(x) && std::fabs(std::fmod(y, 2)) == 1 ? -1 : 1;
  if (size == 1 && std::isinf(y)) return 1;
  if (size == 0 || std::isinf(x) || std::isinf(y)) {
    const bool grows = (size > 1) == (y > 0);
    return sign * (grows ? infinity : 0.0);
  }
  if (x < 0 && std::floor(y) != y) return std::numeric_limits<double>::quiet_NaN();
  return size == 1 ? sign : sign * of_positive(size);
}

}  // namespace

double exp(double x) { return exp_of_sum(x, 0); }

double log(double x) { return log_plus(x, 0); }

double log1p(double x) {
  if (x == 0) return x;
  const Two whole = sum(1, x);
  return log_plus(whole.high, whole.low / whole.high);
}

double expm1(double x) {
  if (x == 0 || std::isnan(x)) return x;
  if (x > 710) return infinity;
  if (x < -40) return -1;
  const ExpParts e(x, 0);
  return scaled(e.less_one().high, e.k);
}

double tanh(double x) {
  if (x == 0 || std::isnan(x)) return x;
  if (std::fabs(x) > 22) return std::copysign(1.0, x);
  // With e = e^(2 x) - 1 = 2^k less_one: tanh(x) = e / (e + 2).
  const ExpParts e(2 * x, 0);
  const Two less_one = e.less_one(), below = sum(scaled(2, -e.k), less_one.high);
  return quotient(less_one, {below.high, below.low + less_one.low}).high;
}

double erf(double x) {
  static constexpr auto terms = erf_terms<15>();
  const double size = std::fabs(x);
  if (size >= erfc_begin) return std::copysign(1 - erfc_of_large(size), x);
  return x + x * polynomial(terms, x * x);
}

double erfc(double x) { return x >= erfc_begin ? erfc_of_large(x) : 1 - erf(x); }

double sin(double x) { return x == 0 ? x : sine(x, 0); }
double cos(double x) { return sine(x, 1); }

double pow(double x, double y) {
  return power(x, y, [y](double size) {
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
float pow(float x, float y) { return static_cast<float>(power(x, y, [y](double size) { return exp(double{y} * log(size)); })); }
// clang-format on

}  // namespace zg::portable

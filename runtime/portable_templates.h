#pragma once

#include <cstddef>
#include <cstdint>

// The functions of portable_math.h as templates. N is double (portable_math.cpp) or one of the
// compiler's vectors of doubles (kernels/cpu/functions_simd.h), whose lanes have the bits of
// double. Both sides of a condition are computed for a vector, so neither may fail for any
// argument. Internal linkage, and nothing of the standard library: *_simd.cpp sources include this.
//
// Methods: reduction of the argument (Cody and Waite), then Taylor series, whose coefficients need
// no table: 1/n! and 1/n. Only erfc has a table.
namespace zg::portable {
namespace {

template <class N>
struct BitsOf {
  using type [[gnu::vector_size(sizeof(N))]] = uint64_t;
};
template <>
struct BitsOf<double> {
  using type = uint64_t;
};
template <class N>
using Bits = typename BitsOf<N>::type;

template <class N>
inline Bits<N> bits_of(N x) {
  return __builtin_bit_cast(Bits<N>, x);
}
template <class N>
inline N number_of(Bits<N> x) {
  return __builtin_bit_cast(N, x);
}
/// x in every lane.
template <class N>
inline N all(double x) {
  return x - N{};
}
/// a b + c with one rounding.
template <class N>
N fused(N a, N b, N c);
template <>
inline double fused(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}

constexpr double infinity = __builtin_inf(), not_a_number = __builtin_nan("");
constexpr uint64_t sign_bit = uint64_t{1} << 63;
/// To add it to a number below 2^51 and take it away rounds to an integer, whose bits are then the
/// lowest ones of the sum.
constexpr double to_integer = 0x1.8p52;

template <class N>
inline N size_of(N x) {
  return number_of<N>(bits_of(x) & ~sign_bit);
}
template <class N>
inline N with_sign_of(N size, N sign) {
  return number_of<N>(bits_of(size) | (bits_of(sign) & sign_bit));
}
template <class N>
inline N floor_of(N x) {
  const N size = size_of(x);
  const N nearest = with_sign_of((size + 0x1p52) - 0x1p52, x);
  const N below = nearest > x ? nearest - 1.0 : nearest;
  return size < 0x1p52 ? below : x;
}

/// An unevaluated sum of two numbers with about 106 bits (Dekker, 1971).
template <class N>
struct Two {
  N high, low;
};

/// a + b without error.
template <class N>
inline Two<N> sum(N a, N b) {
  const N s = a + b, part = s - a;
  return {s, (a - (s - part)) + (b - part)};
}
/// The same if |a| >= |b|.
template <class N>
inline Two<N> ordered_sum(N a, N b) {
  const N s = a + b;
  return {s, b - (s - a)};
}
/// a b without error.
template <class N>
inline Two<N> product(N a, N b) {
  const N p = a * b;
  return {p, fused(a, b, -p)};
}
/// The quotient, with an error of about 2^-104.
template <class N>
inline Two<N> quotient(const Two<N>& a, const Two<N>& b) {
  const N q = a.high / b.high;
  const Two<N> back = product(q, b.high);
  return ordered_sum(q, ((a.high - back.high) - back.low + (a.low - q * b.low)) / b.high);
}

/// ln 2: `high` has 32 bits, so that k high is exact for exponents k.
constexpr Two<double> ln2{0x1.62e42feep-1, 0x1.a39ef35793c76p-33};

template <size_t n>
struct Terms {
  double c[n];
};

/// c[0] + z (c[1] + z (c[2] + ...)).
template <size_t n, class N>
inline N polynomial(const Terms<n>& terms, N z) {
  N value = all<N>(terms.c[n - 1]);
#pragma GCC unroll 32
  for (size_t i = 1; i < n; ++i) value = value * z + terms.c[n - 1 - i];
  return value;
}

/// sign^i / (first + i step)!.
template <size_t n>
constexpr Terms<n> inverse_factorials(int first, int step, double sign) {
  Terms<n> terms{};
  double factorial = 1, signs = 1;
  int number = 0;
  for (size_t i = 0; i < n; ++i) {
    for (; number < first + static_cast<int>(i) * step; ++number) factorial *= number + 1;
    terms.c[i] = signs / factorial;
    signs *= sign;
  }
  return terms;
}

/// 1 / (first + 2 i).
template <size_t n>
constexpr Terms<n> inverse_odds(int first) {
  Terms<n> terms{};
  for (size_t i = 0; i < n; ++i) terms.c[i] = 1.0 / (first + 2.0 * static_cast<double>(i));
  return terms;
}

/// x 2^k, rounded once, for |x| in [2^-60, 2^60] and |k| below 2000.
template <class N>
inline N scaled(N x, Bits<N> k) {
  const Bits<N> half = ((k + 4096) >> 1) - 2048;
  return x * number_of<N>((half + 1023) << 52) * number_of<N>((k - half + 1023) << 52);
}

/// e^(x + rest) = 2^k (1 + high + low), for |rest| far below 1.
template <class N>
struct ExpParts {
  N high, low;
  Bits<N> k;

  inline ExpParts(N x, N rest) {
    constexpr Terms terms = inverse_factorials<12>(2, 1, 1);
    const N shifted = x * (1 / (ln2.high + ln2.low)) + to_integer, whole = shifted - to_integer;
    const Two<N> r = sum(x - whole * ln2.high, rest - whole * ln2.low);
    high = r.high;
    low = r.low + r.high * r.high * polynomial(terms, r.high);
    k = bits_of(shifted) - __builtin_bit_cast(uint64_t, to_integer);
  }
};

template <class N>
inline N exp_of_sum(N x, N rest) {
  const ExpParts<N> e(x, rest);
  N value = scaled(1.0 + (e.high + e.low), e.k);
  value = x > 710.0 ? all<N>(infinity) : value;  // above ln of the largest f64, 709.78
  value = x < -746.0 ? N{} : value;              // below half of the smallest one, -745.13
  return x != x ? x : value;
}
template <class N>
inline N exp_of(N x) {
  return exp_of_sum(x, N{});
}

/// (e^(x + rest) - 1) / 2^k.
template <class N>
inline Two<N> less_one(const ExpParts<N>& e) {
  const Two<N> whole = sum(1.0 - scaled(all<N>(1), -e.k), e.high);
  return ordered_sum(whole.high, whole.low + e.low);
}
template <class N>
inline N expm1_of(N x) {
  const ExpParts<N> e(x, N{});
  N value = scaled(less_one(e).high, e.k);
  value = x > 710.0 ? all<N>(infinity) : value;
  value = x < -40.0 ? all<N>(-1) : value;
  return x == 0.0 ? x : x != x ? x : value;
}

/// x = m 2^k with m in [sqrt(1/2), sqrt(2)), for finite x > 0.
template <class N>
struct Split {
  N m, k;

  inline explicit Split(N x) {
    constexpr auto least_m = __builtin_bit_cast(uint64_t, 0x1.6a09e667f3bcdp-1);
    const auto is_small = x < 0x1p-1022;
    const Bits<N> bits = bits_of(is_small ? x * 0x1p54 : x);
    // The exponent less that of sqrt(1/2) is the part that becomes k, here with 1024 added to it.
    const Bits<N> above = (bits - least_m + (uint64_t{1024} << 52)) >> 52;
    m = number_of<N>(bits - ((above - 1024) << 52));
    k = number_of<N>(above | __builtin_bit_cast(uint64_t, 0x1p52)) - (0x1p52 + 1024);
    k = is_small ? k - 54.0 : k;
  }
};

/// log(x) + rest, for |rest| far below 1.
template <class N>
inline N log_plus(N x, N rest) {
  constexpr Terms terms = inverse_odds<10>(3);
  const Split<N> split(x);
  const N f = split.m - 1.0, s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  // 2 atanh(s) = f - f^2 / 2 + s (f^2 / 2 + 2 (z / 3 + z^2 / 5 + ...)); f is exact.
  const N tail = half - (s * (half + 2.0 * z * polynomial(terms, z)) + (split.k * ln2.low + rest));
  N value = split.k * ln2.high - (tail - f);
  value = x < 0.0 ? all<N>(not_a_number) : value;
  value = x == 0.0 ? all<N>(-infinity) : value;
  return x < infinity ? value : x;  // also NaN
}
template <class N>
inline N log_of(N x) {
  return log_plus(x, N{});
}
/// Exact for powers of two.
template <class N>
inline N log2_of(N x) {
  const Split<N> split(x);
  const N natural = log_of(x), value = split.k + log_of(split.m) * (1 / (ln2.high + ln2.low));
  return size_of(natural) < infinity ? value : natural;
}
template <class N>
inline N log1p_of(N x) {
  const Two<N> whole = sum(all<N>(1), x);
  const N value = log_plus(whole.high, whole.low / whole.high);
  return x == 0.0 ? x : value;
}

/// atan of the Cephes library: from at most 0.66 by a quotient of polynomials; larger ones are pi /
/// 4 or pi / 2 away.
template <class N>
inline N atan_of(N x) {
  constexpr Terms<5> above = {{-64.85021904942025371773, -122.8866684490136173410,
                               -75.00855792314704667340, -16.15753718733365076637,
                               -0.8750608600031904122785}};
  constexpr Terms<6> below = {{194.5506571482613964425, 485.3903996359136964868,
                               432.8810604912902668951, 165.0270098316988542046,
                               24.85846490142306297962, 1.0}};
  constexpr Two<double> quarter{0x1.921fb54442d18p-1, 0x1.1a62633145c07p-55};  // of pi
  const N size = size_of(x), turns = size > 2.414213562373095 ? all<N>(2) : all<N>(1);
  const N high = turns * quarter.high, low = turns * quarter.low;
  const auto is_small = size <= 0.66;
  const N t = is_small                   ? size
              : size > 2.414213562373095 ? -1.0 / size
                                         : (size - 1.0) / (size + 1.0);
  const N z = t * t, value = t + t * (z * polynomial(above, z) / polynomial(below, z));
  return with_sign_of(is_small ? value : high + (value + low), x);
}

template <class N>
inline N sin_of(const Two<N>& x) {
  constexpr Terms terms = inverse_factorials<7>(5, 2, -1);
  const N z = x.high * x.high, cube = z * x.high;
  const N r = polynomial(terms, z);
  return x.high - ((z * (0.5 * x.low - cube * r) - x.low) + cube * (1.0 / 6));
}

template <class N>
inline N cos_of(const Two<N>& x) {
  constexpr Terms terms = inverse_factorials<8>(4, 2, -1);
  const N z = x.high * x.high, half = 0.5 * z, w = 1.0 - half;
  return w + (((1.0 - w) - half) + (z * z * polynomial(terms, z) - x.high * x.low));
}

/// An angle less n pi / 2, at most about pi / 4, and n modulo 4.
template <class N>
struct Angle {
  Two<N> rest;
  Bits<N> quadrant;

  /// The sine of the angle and quarters pi / 2.
  inline N sine(uint64_t quarters) const {
    const Bits<N> turn = (quadrant + quarters) & 3;
    const N value = (turn & 1) == 0 ? sin_of(rest) : cos_of(rest);
    return number_of<N>(bits_of(value) ^ ((turn >> 1) << 63));
  }
};

constexpr double small_angle = 0x1p20;

/// For |x| below small_angle: n times each of three parts of pi / 2, of 33 bits, is exact.
template <class N>
inline Angle<N> reduced_small(N x) {
  const N n = floor_of(x * 0x1.45f306dc9c883p-1 + 0.5);
  const Two<N> a = sum(x - n * 0x1.921fb544p+0, -n * 0x1.0b4611a6p-34);
  const Two<N> b = sum(a.high, -n * 0x1.3198a2ep-69);
  const Two<N> rest = ordered_sum(b.high, b.low + (a.low - n * 0x1.b839a252049c1p-104));
  return {rest, bits_of(n + to_integer)};
}

/// erf(x) = 2 / sqrt(pi) (x - x^3 / 3 + x^5 / (2! 5) - ...) = x + x (c[0] + c[1] x^2 + ...).
template <size_t n>
constexpr Terms<n> erf_terms() {
  Terms<n> terms = inverse_factorials<n>(0, 1, -1);
  for (size_t i = 0; i < n; ++i)
    terms.c[i] *= 1.1283791670955126 / (2.0 * static_cast<double>(i) + 1);
  terms.c[0] = 0x1.06eba8214db69p-3;  // 2 / sqrt(pi) - 1
  return terms;
}

/// Rounded to f32.
template <class N>
inline N as_f32(N x) {
  if constexpr (sizeof(N) == sizeof(double)) {
    return static_cast<float>(x);
  } else {
    using Floats [[gnu::vector_size(sizeof(N) / 2)]] = float;
    return __builtin_convertvector(__builtin_convertvector(x, Floats), N);
  }
}

/// erfc(x) for x >= erfc_begin: (x + 1/2) e^(x^2) erfc(x) is a polynomial in q = 8.5 / (x + 3)
/// - 1.2669, which is within [-1, 1] up to x = 28 (after Shepherd and Laframboise, 1981). Its
/// coefficients are those of the Chebyshev series, computed with 300 bits; the error is 2^-56.7.
constexpr double erfc_begin = 0.75;
template <class N>
inline N erfc_of_large(N x) {
  constexpr double first = 0x1.3cffcb1aaf6b2p-1;
  constexpr Terms<20> terms = {
      {0x1.9a23e71ff16ebp-5,   -0x1.beb585ed6a079p-9,  -0x1.f144ce7fe2c52p-7,
       -0x1.620539f765b17p-7,  -0x1.35bca313d8a8fp-8,  -0x1.5ac7dea466d91p-10,
       -0x1.5c3d55d16a0afp-13, 0x1.21165bd0d1f34p-15,  0x1.29530bc1eec5bp-16,
       0x1.32e590aa7b837p-21,  -0x1.4c1fc507e38d3p-20, -0x1.61b1f63363671p-23,
       0x1.8b999b2324660p-24,  0x1.355224bdf976ap-26,  -0x1.175f35ad97754p-27,
       -0x1.c02823ca42d6cp-30, 0x1.af51585ce628fp-31,  0x1.09f5afd69be14p-33,
       -0x1.f0b6b169d6098p-35, -0x1.7bff00dd6a507p-38}};
  const N q = 8.5 / (x + 3.0) - 1.2669;
  const Two<N> ratio =
      quotient(ordered_sum(all<N>(first), q * polynomial(terms, q)), sum(x, all<N>(0.5)));
  const N upper = as_f32(x);  // its square is exact
  const ExpParts<N> e(-upper * upper, (upper - x) * (upper + x));
  const Two<N> power = ordered_sum(all<N>(1), e.high);
  const N low = ratio.high * (power.low + e.low) + ratio.low * power.high;
  const N value = scaled(ratio.high * power.high + low, e.k);
  return x > 28.0 ? N{} : value;  // the smallest f64 is erfc(27.2)
}

template <class N>
inline N erf_of(N x) {
  constexpr Terms terms = erf_terms<15>();
  const N size = size_of(x);
  return size >= erfc_begin ? with_sign_of(1.0 - erfc_of_large(size), x)
                            : x + x * polynomial(terms, x * x);
}

/// x^y, where of_positive(|x|) gives y-th powers of finite positive numbers other than 1.
template <class N, class F>
inline N power_of(N x, N y, const F& of_positive) {
  const N size = size_of(x), y_size = size_of(y), half = 0.5 * y;
  const auto is_odd = (floor_of(y) == y) & (floor_of(half) != half) & (y_size < infinity);
  N value = size == 1.0 ? all<N>(1) : of_positive(size);
  const auto grows = (size > 1.0) == (y > 0.0);
  const N limit = grows ? all<N>(infinity) : N{};
  value = (size == 0.0) | (size == infinity) | (y_size == infinity) ? limit : value;
  value = is_odd ? with_sign_of(value, x) : value;
  value = (x < 0.0) & (size < infinity) & (floor_of(y) != y) ? all<N>(not_a_number) : value;
  value = (size == 1.0) & (y_size == infinity) ? all<N>(1) : value;
  value = (x != x) | (y != y) ? x + y : value;
  return (y == 0.0) | (x == 1.0) ? all<N>(1) : value;
}
template <class N>
inline N pow_of_f32(N x, N y) {
  return power_of(x, y, [&](N size) { return exp_of(y * log_of(size)); });
}

}  // namespace
}  // namespace zg::portable

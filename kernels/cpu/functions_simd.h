#pragma once

#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/runtime/portable_templates.h"

// Elementary functions of vectors. Besides exp, expm1, log1p and tanh they are computed in f64 and
// rounded once, with the bits of runtime/portable_math.h.
namespace zg::portable {
namespace {

template <>
inline cpu::Doubles fused(cpu::Doubles a, cpu::Doubles b, cpu::Doubles c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_pd(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f64(c, a, b);
#else
  for (int i = 0; i < cpu::double_lanes; ++i) c[i] = __builtin_fma(a[i], b[i], c[i]);
  return c;
#endif
}

}  // namespace
}  // namespace zg::portable

namespace zg::cpu {
namespace {

/// 16 numbers in f64.
struct Sixteen {
  Doubles part[2 * parts];
};

/// The lanes of a register from `first` on, in f64.
template <size_t first, size_t... lane>
inline Doubles widen(Part a, std::index_sequence<lane...>) {
  const auto half = __builtin_shufflevector(a, a, first + lane...);
#if defined(__AVX512F__)
  return _mm512_cvtps_pd(half);  // GCC 12 converts halves of `half`, and joins them
#else
  return __builtin_convertvector(half, Doubles);
#endif
}
inline Sixteen widen(Vec a) {
  constexpr auto indices = std::make_index_sequence<double_lanes>();
  Sixteen wide;
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i) {
    wide.part[2 * i] = widen<0>(a.part[i], indices);
    wide.part[2 * i + 1] = widen<double_lanes>(a.part[i], indices);
  }
  return wide;
}
template <size_t... lane>
inline Part narrow(Doubles low, Doubles high, std::index_sequence<lane...>) {
  using Floats [[gnu::vector_size(2 * part_lanes)]] = float;
  return __builtin_shufflevector(__builtin_convertvector(low, Floats),
                                 __builtin_convertvector(high, Floats), lane...);
}
inline Vec narrow(const Sixteen& a) {
  return each([&](int i) {
    return narrow(a.part[2 * i], a.part[2 * i + 1], std::make_index_sequence<part_lanes>());
  });
}

/// f of the lanes of vectors in f64.
template <class F, class... Vectors>
inline Vec in_f64(const F& f, Vectors... x) {
  return [&](auto... wide) {
    Sixteen result;
#pragma GCC unroll 8
    for (int i = 0; i < 2 * parts; ++i) result.part[i] = f(wide.part[i]...);
    return narrow(result);
  }(widen(x)...);
}

// Functions of some hundred instructions: calls cost less than a copy for each type and each last,
// shorter vector.
[[gnu::noinline, maybe_unused]] Vec log(Vec x) { return in_f64(portable::log_of<Doubles>, x); }
[[gnu::noinline, maybe_unused]] Vec log2(Vec x) { return in_f64(portable::log2_of<Doubles>, x); }
[[gnu::noinline, maybe_unused]] Vec atan(Vec x) { return in_f64(portable::atan_of<Doubles>, x); }
[[gnu::noinline, maybe_unused]] Vec erf(Vec x) { return in_f64(portable::erf_of<Doubles>, x); }
[[gnu::noinline, maybe_unused]] Vec pow(Vec x, Vec y) {
  return in_f64(portable::pow_of_f32<Doubles>, x, y);
}

/// a - floor(a / b) b, exactly: the remainder with the sign of b.
inline double modulo(double a, double b) {
  const double rest = __builtin_fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
[[gnu::noinline, maybe_unused]] Vec modulo(Vec a, Vec b) {
  float dividends[Vec::lanes], divisors[Vec::lanes];
  store(dividends, a);
  store(divisors, b);
  for (int i = 0; i < Vec::lanes; ++i)
    dividends[i] = static_cast<float>(modulo(double{dividends[i]}, double{divisors[i]}));
  return load(dividends);
}

/// To the nearest integer, of two the even one.
inline Vec rint(Vec x) {
  const Vec size = abs(x), nearest = (size + 0x1p23) - 0x1p23;
  return select(size < 0x1p23, select(x < 0.0, -nearest, select(0.0 < x, nearest, x)), x);
}
inline Vec floor(Vec x) {
  const Vec nearest = rint(x);
  return select(x < nearest, nearest - 1.0, nearest);
}

/// The sine of x + quarters pi / 2; f is this function for large angles.
[[gnu::noinline, maybe_unused]] Vec sine(Vec x, uint64_t quarters, float (*f)(float)) {
  const Mask small = abs(x) < portable::small_angle;
  if (reduce_add(select(small, 0.0, 1.0)) == 0.0f)
    return in_f64([&](Doubles a) { return portable::reduced_small(a).sine(quarters); }, x);
  float lanes[Vec::lanes];
  store(lanes, x);
  for (float& lane : lanes) lane = f(lane);
  return load(lanes);
}
inline Vec cos(Vec x) { return sine(x, 1, portable::cos); }
inline Vec sin(Vec x) {
  const Vec value = sine(x, 0, portable::sin);
  return select(abs(x) <= 0.0, x, value);  // -0
}

/// e^x - 1 within 1.3 ulp: with x = n ln 2 + r + rest it is 2^n (r + tail) + (2^n - 1). Half of it
/// is computed and doubled, because an f32 does not hold 2^128.
inline Vec expm1(Vec x) {
  const Vec clamped = min(89.0, max(-20.0, x));  // NaN stays, as in exp
  const Vec n = round(clamped * 1.44269504088896341f);
  const Vec high = fnma(n, 0.693359375f, clamped), r = fnma(n, -2.12194440e-4f, high);
  const Vec rest = fnma(n, -2.12194440e-4f, high - r);  // the rounding error of r
  Vec tail = 1.984595728572458e-4f;
  tail = fma(tail, r, 1.39416405e-3f);
  tail = fma(tail, r, 8.33339151e-3f);
  tail = fma(tail, r, 4.16663475e-2f);
  tail = fma(tail, r, 0.166666657f);
  tail = fma(tail, r, 0.5f);
  tail = fma(tail, r * r, rest);
  const Vec half = scale_by_power(0.5, n), value = fma(half, tail, fma(half, r, half - 0.5));
  return select(abs(x) < 0x1p-26, x, value + value);
}

/// log(1 + x) within 1.5 ulp: 1 + x without its rounding error is 2^n (1 + f), f between sqrt(1/2)
/// - 1 and sqrt(2) - 1. The polynomial is that of logf in the Cephes library.
inline Vec log1p(Vec x) {
  using Integers [[gnu::vector_size(4 * part_lanes)]] = int32_t;
  const Vec y = x + 1.0, error = select(x < 1.0, x - (y - 1.0), 1.0 - (y - x));
  const auto power = [&](int i) { return (words_of(y.part[i]) - 0x3f3504f3u) & 0xff800000u; };
  const Vec n =
      each([&](int i) { return __builtin_convertvector((Integers)power(i) >> 23, Part); });
  const Vec scaled_error =
      each([&](int i) { return error.part[i] * part_of(0x3f800000u - power(i)); });
  const Vec f = each([&](int i) { return part_of(words_of(y.part[i]) - power(i)); }) - 1.0 +
                select(x < 0x1p25, scaled_error, 0.0);
  Vec p = 7.0376836292e-2f;
  p = fma(p, f, -1.1514610310e-1f);
  p = fma(p, f, 1.1676998740e-1f);
  p = fma(p, f, -1.2420140846e-1f);
  p = fma(p, f, 1.4249322787e-1f);
  p = fma(p, f, -1.6668057665e-1f);
  p = fma(p, f, 2.0000714765e-1f);
  p = fma(p, f, -2.4999993993e-1f);
  p = fma(p, f, 3.3333331174e-1f);
  const Vec square = f * f;
  const Vec rest = fma(n, -2.12194440e-4f, fma(square, -0.5f, p * square * f));
  const Vec value = fma(n, 0.693359375f, f + rest), infinity = __builtin_inf();
  const Vec finite = select(-1.0 < x, value, select(x < -1.0, infinity - infinity, x - infinity));
  return select(abs(x) < 0x1p-26, x, select(x < infinity, finite, x));
}

/// a, which has no sign, with the sign of b; also of -0.
inline Vec with_sign(Vec a, Vec b) {
  return each(
      [&](int i) { return part_of(words_of(a.part[i]) | (words_of(b.part[i]) & 0x80000000u)); });
}
/// tanhf of the Cephes library: near 0 a polynomial, because 1 - 2 / (e^2x + 1) would lose digits
/// there by cancellation.
inline Vec tanh(Vec x) {
  const Vec magnitude = abs(x), square = x * x;
  Vec p = -5.70498872745e-3f;
  p = fma(p, square, 2.06390887954e-2f);
  p = fma(p, square, -5.37397155531e-2f);
  p = fma(p, square, 1.33314422036e-1f);
  p = fma(p, square, -3.33332819422e-1f);
  const Vec small = fma(p * square, magnitude, magnitude);
  const Vec large = 1.0 - 2.0 / (exp(magnitude + magnitude) + 1.0);
  return with_sign(select(magnitude < 0.625, small, large), x);
}

inline double log(double x) { return portable::log(x); }
inline double log1p(double x) { return portable::log1p(x); }
inline double log2(double x) { return portable::log2(x); }
inline double expm1(double x) { return portable::expm1(x); }
inline double atan(double x) { return portable::atan(x); }
inline double rint(double x) { return __builtin_rint(x); }
inline double floor(double x) { return __builtin_floor(x); }
inline double erf(double x) { return portable::erf(x); }
inline double pow(double x, double y) { return portable::pow(x, y); }
inline double cos(double x) { return portable::cos(x); }
inline double sin(double x) { return portable::sin(x); }
inline double tanh(double x) { return portable::tanh(x); }

}  // namespace
}  // namespace zg::cpu

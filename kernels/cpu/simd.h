#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/portable_math.h"

// Vectors of 16 f32 for the *_simd.cpp sources, which are compiled once per instruction set. A
// vector is one register of AVX-512, two of AVX2, or four of any other processor. Every sum over
// lanes has the same tree, and every function consists of the same IEEE operations, so a result has
// the same bits on each of them.
//
// A Part is one register; functions of a Part that differ by processor come first, functions of a
// Vec are written once. Everything has internal linkage: otherwise the linker could use a function
// compiled for AVX-512 also in code for other machines. Such sources call no function template of
// the standard library.
#if !defined(ZG_ISA)
#error "kernels/cpu/simd.h is for *_simd.cpp sources; see zg_add_simd in tools/cmake"
#endif

namespace zg::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int part_lanes = 16;
#elif defined(__AVX2__)
constexpr int part_lanes = 8;
#else
constexpr int part_lanes = 4;
#endif

constexpr int parts = 16 / part_lanes, double_lanes = part_lanes / 2;

using Part [[gnu::vector_size(4 * part_lanes)]] = float;
using Words [[gnu::vector_size(4 * part_lanes)]] = uint32_t;
using Halves [[gnu::vector_size(2 * part_lanes)]] = uint16_t;
using Doubles [[gnu::vector_size(4 * part_lanes)]] = double;
using Doublewords [[gnu::vector_size(4 * part_lanes)]] = uint64_t;

inline Part splat(float x) { return x - Part{}; }  // 0 + x would lose the sign of -0
inline Words words_of(Part a) { return (Words)a; }
inline Part part_of(Words a) { return (Part)a; }

// The first n elements at p; n may be below 0 or beyond the register. The other lanes are 0.
template <class Register, class T>
inline Register copy_some(const T* p, int64_t n) {
  constexpr int lanes = sizeof(Register) / sizeof(T);
  alignas(Register) T some[lanes] = {};
#pragma GCC unroll 1
  for (int64_t i = 0; i < n && i < lanes; ++i) some[i] = p[i];
  Register a;
  __builtin_memcpy(&a, some, sizeof a);
  return a;
}
template <class Register, class T>
inline void copy_some(T* p, Register a, int64_t n) {
  constexpr int lanes = sizeof(Register) / sizeof(T);
  alignas(Register) T some[lanes];
  __builtin_memcpy(some, &a, sizeof a);
#pragma GCC unroll 1
  for (int64_t i = 0; i < n && i < lanes; ++i) p[i] = some[i];
}

// The functions of a Part that differ by processor. Lanes selects lanes. fma is a * b + c and fnma
// c - a * b, rounded once. max and min return b if an operand is NaN. round is to the nearest
// integer, of |a| < 2^22. scale_by_power is a * 2^n of an integral n in [-252, 254]; it multiplies
// by two powers of two whose exponents add up to n, because an f32 may not hold 2^n.
#if defined(__AVX512F__)

using Lanes = __mmask16;
inline Lanes first_lanes(int64_t n) {
  return static_cast<Lanes>(n >= 16 ? 0xffff : n < 0 ? 0 : (1u << n) - 1u);
}
inline Lanes less(Part a, Part b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Lanes at_most(Part a, Part b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
inline Lanes at_least(Words a, Words b) { return _mm512_cmpge_epu32_mask((__m512i)a, (__m512i)b); }
inline Part select(Lanes lanes, Part yes, Part no) { return _mm512_mask_blend_ps(lanes, no, yes); }
inline Part load_some(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
inline void store_some(float* p, Part a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a); }
inline Halves load_some(const uint16_t* p, int64_t n) {
  return (Halves)_mm256_maskz_loadu_epi16(first_lanes(n), p);
}
inline void store_some(uint16_t* p, Halves a, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), (__m256i)a);
}
inline Words widen(Halves a) { return (Words)_mm512_cvtepu16_epi32((__m256i)a); }
inline Halves narrow(Words a) { return (Halves)_mm512_cvtepi32_epi16((__m512i)a); }
inline Part widen_f16(Halves a) { return _mm512_cvtph_ps((__m256i)a); }
inline Halves narrow_f16(Part a) { return (Halves)_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT); }
inline Part fma(Part a, Part b, Part c) { return _mm512_fmadd_ps(a, b, c); }
inline Part fnma(Part a, Part b, Part c) { return _mm512_fnmadd_ps(a, b, c); }
inline Part max(Part a, Part b) { return _mm512_max_ps(a, b); }
inline Part min(Part a, Part b) { return _mm512_min_ps(a, b); }
inline Part sqrt(Part a) { return _mm512_sqrt_ps(a); }
inline Part round(Part a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
inline Part scale_by_power(Part a, Part n) { return _mm512_scalef_ps(a, n); }

#else

using Lanes = Words;  // all bits of a selected lane are 1
inline Lanes first_lanes(int64_t n) {
  constexpr int32_t numbers[] = {0, 1, 2, 3, 4, 5, 6, 7};
  using Integers [[gnu::vector_size(4 * part_lanes)]] = int32_t;
  Integers lane;
  __builtin_memcpy(&lane, numbers, sizeof lane);
  return (Lanes)(lane < static_cast<int32_t>(n < 0 ? 0 : n < part_lanes ? n : part_lanes));
}
inline Lanes less(Part a, Part b) { return (Lanes)(a < b); }
inline Lanes at_most(Part a, Part b) { return (Lanes)(a <= b); }
inline Lanes at_least(Words a, Words b) { return (Lanes)(a >= b); }

#if defined(__AVX2__)

inline Part load_some(const float* p, int64_t n) {
  return _mm256_maskload_ps(p, (__m256i)first_lanes(n));
}
inline void store_some(float* p, Part a, int64_t n) {
  _mm256_maskstore_ps(p, (__m256i)first_lanes(n), a);
}
inline Words widen(Halves a) { return (Words)_mm256_cvtepu16_epi32((__m128i)a); }
/// The words must be below 2^16.
inline Halves narrow(Words a) {
  return (Halves)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)a),
                                  _mm256_extracti128_si256((__m256i)a, 1));
}
inline Part widen_f16(Halves a) { return _mm256_cvtph_ps((__m128i)a); }
inline Halves narrow_f16(Part a) { return (Halves)_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT); }
inline Part select(Lanes lanes, Part yes, Part no) {
  return _mm256_blendv_ps(no, yes, (__m256)lanes);
}
inline Part fma(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }
inline Part fnma(Part a, Part b, Part c) { return _mm256_fnmadd_ps(a, b, c); }
inline Part max(Part a, Part b) { return _mm256_max_ps(a, b); }
inline Part min(Part a, Part b) { return _mm256_min_ps(a, b); }
inline Part sqrt(Part a) { return _mm256_sqrt_ps(a); }
inline Part round(Part a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#else

inline Part load_some(const float* p, int64_t n) { return copy_some<Part>(p, n); }
inline void store_some(float* p, Part a, int64_t n) { copy_some(p, a, n); }
inline Words widen(Halves a) { return __builtin_convertvector(a, Words); }
inline Halves narrow(Words a) { return __builtin_convertvector(a, Halves); }
inline Part select(Lanes lanes, Part yes, Part no) { return lanes ? yes : no; }
inline Part max(Part a, Part b) { return a > b ? a : b; }
inline Part min(Part a, Part b) { return a < b ? a : b; }

/// The product is exact in f64. The sum is rounded to odd there: then the second rounding, to f32,
/// gives the sum rounded once (Boldo, Melquiond 2008, doi:10.1109/TC.2007.70819). `flushes`:
/// results that round to less than the least normal number, with any exponent, become 0.
template <bool flushes>
[[gnu::noinline]] Part fma_by_f64(Part a, Part b, Part c) {
  using Wide [[gnu::vector_size(8 * part_lanes)]] = double;
  using Bits [[gnu::vector_size(8 * part_lanes)]] = uint64_t;
  const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide);
  const Wide term = __builtin_convertvector(c, Wide);
  const Wide sum = product + term, added = sum - product;
  const Wide error = (product - (sum - added)) + (term - added);  // exact: sum + error
  const Bits inexact = (Bits)((error > 0) | (error < 0)), bits = (Bits)sum;
  const Bits is_even = (bits & 1) - 1;
  const Bits toward_error = 1 - 2 * ((bits ^ (Bits)error) >> 63);
  Bits odd = bits + (inexact & is_even & toward_error);
  if (flushes) {
    constexpr uint64_t sign = uint64_t{1} << 63;
    const Wide magnitude = (Wide)(odd & ~sign);
    odd = magnitude < 0x1p-126 - 0x1p-151 ? odd & sign : odd;
  }
  return __builtin_convertvector((Wide)odd, Part);
}

#if defined(__aarch64__)

inline Part widen_f16(Halves a) { return vcvt_f32_f16((float16x4_t)a); }
inline Halves narrow_f16(Part a) { return (Halves)vcvt_f16_f32(a); }
inline Part fma(Part a, Part b, Part c) { return vfmaq_f32(c, a, b); }
inline Part sqrt(Part a) { return vsqrtq_f32(a); }

#else

template <class To, class From, class F>
inline To by_lane(From a, const F& f) {
  To result;
  for (int i = 0; i < part_lanes; ++i) result[i] = f(a[i]);
  return result;
}
inline Part widen_f16(Halves a) {
  return by_lane<Part>(a, [](uint16_t bits) {
    f16 half;
    half.bits = bits;
    return static_cast<float>(half);
  });
}
inline Halves narrow_f16(Part a) {
  return by_lane<Halves>(a, [](float x) { return f16(x).bits; });
}
inline Part sqrt(Part a) {
  return by_lane<Part>(a, [](float x) { return __builtin_sqrtf(x); });
}
inline Part fma(Part a, Part b, Part c) { return fma_by_f64<false>(a, b, c); }

#endif
inline Part fnma(Part a, Part b, Part c) { return fma(-a, b, c); }
inline Part round(Part a) {
  const Part shift = splat(0x1.8p23f);  // the sum has no bits below 1
  return (a + shift) - shift;
}

#endif

inline Halves load_some(const uint16_t* p, int64_t n) { return copy_some<Halves>(p, n); }
inline void store_some(uint16_t* p, Halves a, int64_t n) { copy_some(p, a, n); }
inline Part scale_by_power(Part a, Part n) {
  using Integers [[gnu::vector_size(4 * part_lanes)]] = int32_t;
  const Integers exponent = __builtin_convertvector(n, Integers), half = exponent >> 1;
  return a * (Part)((half + 127) << 23) * (Part)((exponent - half + 127) << 23);
}

#endif

/// The register at p.
template <class Register>
inline Register read(const void* p) {
  Register a;
  __builtin_memcpy(&a, p, sizeof a);
  return a;
}

/// The bits of bf16(float): integer arithmetic, to nearest even. The instruction vcvtneps2bf16 does
/// not have them: it flushes subnormals to 0.
inline Halves narrow_bf16(Part a) {
  const Words u = words_of(a), odd = (u >> 16) & 1;
  const Words rounded = a == a ? u + (odd + 0x7fff) : u | 0x400000;
  return narrow(rounded >> 16);
}
/// A NaN becomes the quiet NaN of its sign before it is rounded, as in f16(float).
inline Halves quiet_f16(Part a) {
  const Words quiet = (words_of(a) & 0x80000000u) | 0x7fc00000u;
  return narrow_f16(a == a ? a : part_of(quiet));
}

// Halves as bf16 or f16, and elements of type T as a Part: all of them, or the first n.
template <class T>
inline Part widened(Halves a) {
  if constexpr (std::is_same_v<T, bf16>) return part_of(widen(a) << 16);
  return widen_f16(a);
}
template <class T>
inline Halves narrowed(Part a) {
  if constexpr (std::is_same_v<T, bf16>) return narrow_bf16(a);
  return quiet_f16(a);
}
inline Part load_part(const float* p) { return read<Part>(p); }
inline Part load_part(const float* p, int64_t n) { return load_some(p, n); }
template <class T>
inline Part load_part(const T* p) {
  return widened<T>(read<Halves>(p));
}
template <class T>
inline Part load_part(const T* p, int64_t n) {
  return widened<T>(load_some(&p->bits, n));
}
inline void store_part(float* p, Part a) { __builtin_memcpy(p, &a, sizeof a); }
inline void store_part(float* p, Part a, int64_t n) { store_some(p, a, n); }
template <class T>
inline void store_part(T* p, Part a) {
  const Halves halves = narrowed<T>(a);
  __builtin_memcpy(&p->bits, &halves, sizeof halves);
}
template <class T>
inline void store_part(T* p, Part a, int64_t n) {
  store_some(&p->bits, narrowed<T>(a), n);
}

struct Vec {
  static constexpr int lanes = 16;
  Part part[parts];

  Vec() = default;
  /// A constant is rounded to f32 once; a float stays as it is.
  inline Vec(double x) {
#pragma GCC unroll 4
    for (int i = 0; i < parts; ++i) part[i] = splat(static_cast<float>(x));
  }
};
struct Mask {
  Lanes part[parts];
};

/// The Vec or Mask whose part i is f(i).
template <class V = Vec, class F>
inline V each(const F& f) {
  V result;
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i) result.part[i] = f(i);
  return result;
}

/// Passed to load and store in place of a count if the vector is full. As a type of its own it
/// selects overloads without a mask.
struct All {};

template <class T>
inline Vec load(const T* p, All = {}) {
  return each([&](int i) { return load_part(p + i * part_lanes); });
}
/// The first n elements; the other lanes are 0.
template <class T>
inline Vec load(const T* p, int64_t n) {
  return each([&](int i) { return load_part(p + i * part_lanes, n - i * part_lanes); });
}
template <class T>
inline void store(T* p, Vec a, All = {}) {
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i) store_part(p + i * part_lanes, a.part[i]);
}
template <class T>
inline void store(T* p, Vec a, int64_t n) {
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i) store_part(p + i * part_lanes, a.part[i], n - i * part_lanes);
}

// A function of vectors, by its result in part i.
#define ZG_EACH(V, name, arguments, ...)                \
  inline V name arguments {                             \
    return each<V>([&](int i) { return __VA_ARGS__; }); \
  }
ZG_EACH(Vec, operator+, (Vec a, Vec b), a.part[i] + b.part[i])
ZG_EACH(Vec, operator-, (Vec a, Vec b), a.part[i] - b.part[i])
ZG_EACH(Vec, operator*, (Vec a, Vec b), a.part[i] * b.part[i])
ZG_EACH(Vec, operator/, (Vec a, Vec b), a.part[i] / b.part[i])
ZG_EACH(Vec, operator-, (Vec a), -a.part[i])
ZG_EACH(Vec, fma, (Vec a, Vec b, Vec c), fma(a.part[i], b.part[i], c.part[i]))
ZG_EACH(Vec, fnma, (Vec a, Vec b, Vec c), fnma(a.part[i], b.part[i], c.part[i]))
ZG_EACH(Vec, max, (Vec a, Vec b), max(a.part[i], b.part[i]))
ZG_EACH(Vec, min, (Vec a, Vec b), min(a.part[i], b.part[i]))
ZG_EACH(Vec, sqrt, (Vec a), sqrt(a.part[i]))
ZG_EACH(Vec, round, (Vec a), round(a.part[i]))
ZG_EACH(Vec, abs, (Vec a), part_of(words_of(a.part[i]) & 0x7fffffffu))
ZG_EACH(Vec, scale_by_power, (Vec a, Vec n), scale_by_power(a.part[i], n.part[i]))
ZG_EACH(Mask, operator<, (Vec a, Vec b), less(a.part[i], b.part[i]))
ZG_EACH(Mask, operator<=, (Vec a, Vec b), at_most(a.part[i], b.part[i]))
ZG_EACH(Mask, first, (int64_t n), first_lanes(n - i * part_lanes))
ZG_EACH(Vec, select, (Mask m, Vec yes, Vec no), select(m.part[i], yes.part[i], no.part[i]))
#undef ZG_EACH

/// The first n lanes of a, then those of `other`.
inline Vec keep(Vec a, int64_t n, Vec other = 0.0) { return select(first(n), a, other); }
inline Vec keep(Vec a, All, Vec = 0.0) { return a; }

/// All lanes combined as a binary tree: lane i with lane i + 8, then by the distances 4, 2 and 1.
template <class F>
inline float reduce(Vec a, const F& f) {
  using Four [[gnu::vector_size(16)]] = float;
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 eight = f(_mm512_castps512_ps256(a.part[0]), _mm512_extractf32x8_ps(a.part[0], 1));
#else
  const __m256 eight = f(a.part[0], a.part[1]);
#endif
  const Four x = f(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#else
  const Four x = f(f(a.part[0], a.part[2]), f(a.part[1], a.part[3]));
#endif
  return f(f(x[0], x[2]), f(x[1], x[3]));
}
inline float first_lane(Vec a) { return a.part[0][0]; }
inline float reduce_add(Vec a) {
  return reduce(a, [](auto x, auto y) { return x + y; });
}
inline float reduce_max(Vec a) {
  return reduce(a, [](auto x, auto y) { return x > y ? x : y; });
}

/// e^x with an error of at most 2 ulp; 0 below -87, infinity above 88.8; NaN stays NaN. The
/// polynomial is that of expf in the Cephes library.
inline Vec exp(Vec x) {
  // Small inputs are common (masked scores are -infinity), and subnormal results would take 25
  // times as long.
  const Vec least = -87.0;
  // The order of the operands keeps NaN: min and max return their second operand if one is NaN.
  const Vec clamped = min(89.0, max(least, x));
  const Vec n = round(clamped * 1.44269504088896341f);
  const Vec r = fnma(n, -2.12194440e-4f, fnma(n, 0.693359375f, clamped));  // ln 2 in two parts
  Vec p = 1.9875691500e-4f;
  p = fma(p, r, 1.3981999507e-3f);
  p = fma(p, r, 8.3334519073e-3f);
  p = fma(p, r, 4.1665795894e-2f);
  p = fma(p, r, 1.6666665459e-1f);
  p = fma(p, r, 5.0000001201e-1f);
  p = fma(p, r * r, r + 1.0);
  return select(x < least, 0.0, scale_by_power(p, n));
}

// f64 serves gradient checks. Its vectors have one lane, so that a kernel is written once for all
// types: VecOf<T> has elements of type T in their accumulator type.
inline double load(const double* p, All = {}) { return *p; }
inline void store(double* p, double a, All = {}) { *p = a; }
inline double keep(double a, All, double = 0.0) { return a; }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double fnma(double a, double b, double c) { return __builtin_fma(-a, b, c); }
inline double max(double a, double b) { return a > b ? a : b; }
inline double sqrt(double a) { return __builtin_sqrt(a); }
inline double abs(double a) { return __builtin_fabs(a); }
inline double exp(double a) { return portable::exp(a); }
inline double select(bool condition, double yes, double no) { return condition ? yes : no; }
inline double first_lane(double a) { return a; }
inline double reduce_add(double a) { return a; }
inline double reduce_max(double a) { return a; }

template <class T>
using VecOf = std::conditional_t<std::is_same_v<T, double>, double, Vec>;
template <class T>
constexpr int64_t lanes_of = sizeof(VecOf<T>) / sizeof(accumulator_t<T>);

/// f32 as a vector of the kind V.
template <class V>
inline V load_as(const float* p) {
  if constexpr (std::is_same_v<V, double>)
    return *p;
  else
    return load(p);
}

/// Rounds to T and widens the result again.
template <class T>
inline VecOf<T> rounded(VecOf<T> a) {
  if constexpr (sizeof(T) == 2)
    return each([&](int i) { return widened<T>(narrowed<T>(a.part[i])); });
  return a;
}

/// Calls f(i, count) for the vectors that begin at element i of [0, n). count is an argument for
/// load and store: All, except for a last, shorter vector.
template <class T = float, class F>
inline void for_vectors(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + lanes_of<T> <= n; i += lanes_of<T>) f(i, All{});
  if constexpr (1 < lanes_of<T>)
    if (i < n) f(i, n - i);
}

/// The same of whole vectors only: n is a multiple of their lanes.
template <class T, class F>
inline void for_whole_vectors(int64_t n, const F& f) {
  for (int64_t i = 0; i < n; i += lanes_of<T>) f(i, All{});
}

/// Combines term(i, count) over [0, n) by f, which has the neutral element `start`: `width` vectors
/// side by side, then as a binary tree of neighbours.
template <class T, int width, class Term, class F>
inline VecOf<T> combine(int64_t n, VecOf<T> start, const Term& term, const F& f) {
  constexpr int64_t lanes = lanes_of<T>, stride = width * lanes;
  VecOf<T> value[width];
  for (VecOf<T>& one : value) one = start;
  const int64_t whole = n / stride * stride;
  for (int64_t i = 0; i < whole; i += stride)
    for (int k = 0; k < width; ++k) value[k] = f(value[k], term(i + k * lanes, All{}));
  for_vectors<T>(n - whole, [&](int64_t i, auto count) {
    value[0] = f(value[0], keep(term(whole + i, count), count, start));
  });
  for (int distance = 1; distance < width; distance *= 2)
    for (int k = 0; k < width; k += 2 * distance) value[k] = f(value[k], value[k + distance]);
  return value[0];
}
template <class T, int width, class Term>
inline accumulator_t<T> sum_of(int64_t n, const Term& term) {
  return reduce_add(combine<T, width>(n, 0.0, term, [](auto a, auto b) { return a + b; }));
}

/// Blocks of `distance` lanes: a's blocks of even number, each followed by b's of the same number;
/// those of odd number.
template <int distance, class Register, size_t... lane>
inline Register even_blocks(Register a, Register b, std::index_sequence<lane...>) {
  constexpr size_t lanes = sizeof...(lane);
  return __builtin_shufflevector(a, b, (lane & distance ? lanes + lane - distance : lane)...);
}
template <int distance, class Register, size_t... lane>
inline Register odd_blocks(Register a, Register b, std::index_sequence<lane...>) {
  constexpr size_t lanes = sizeof...(lane);
  return __builtin_shufflevector(a, b, (lane & distance ? lanes + lane : lane + distance)...);
}

}  // namespace
}  // namespace zg::cpu

// Each *_simd.cpp source defines its table of functions in zg::cpu::ZG_ISA: any_cpu, avx2, avx512
// or, in kernels/matmul, avx512_bf16 (kernels/cpu/level.h).

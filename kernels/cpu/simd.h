#pragma once

#include <immintrin.h>

#include <cstdint>

#include "zerograd/runtime/dtype.h"

// Vectors of f32 for the *_simd.cpp sources, which are compiled once per instruction set.
// Everything has internal linkage: otherwise the linker could use a function compiled for AVX-512
// also in code for other machines. Such sources call no function template of the standard library.
#if !defined(ZG_ISA)
#error "kernels/cpu/simd.h is for *_simd.cpp sources; see zg_add_simd in tools/cmake"
#endif

namespace zg::cpu {
namespace {

#if defined(__AVX512F__)

struct Vec {
  static constexpr int lanes = 16;
  __m512 v;
};
using Mask = __mmask16;

inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Mask first(int64_t n) { return n >= 16 ? Mask(0xffff) : Mask((1u << n) - 1u); }
inline Vec load(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline void store(float* p, Vec a, int64_t n) { _mm512_mask_storeu_ps(p, first(n), a.v); }

inline Vec widen(__m256i h) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
// Rounds to nearest even with integer arithmetic, which gives the bits of bf16(float). The
// instruction vcvtneps2bf16 does not: it flushes subnormals to 0.
inline __m256i narrow(Vec a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const Mask nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}
inline Vec load(const bf16* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load(const bf16* p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
inline void store(bf16* p, Vec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(a)); }
inline void store(bf16* p, Vec a, int64_t n) { _mm256_mask_storeu_epi16(p, first(n), narrow(a)); }

// A NaN becomes the quiet NaN of its sign before it is rounded, as in f16(float).
inline __m256i narrow_to_f16(Vec a) {
  const Mask nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i sign =
      _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  const __m512i quiet = _mm512_or_si512(sign, _mm512_set1_epi32(0x7fc00000));
  return _mm512_cvtps_ph(_mm512_mask_mov_ps(a.v, nan, _mm512_castsi512_ps(quiet)),
                         _MM_FROUND_TO_NEAREST_INT);
}
inline Vec widen_from_f16(__m256i h) { return {_mm512_cvtph_ps(h)}; }
inline Vec load(const f16* p) {
  return widen_from_f16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load(const f16* p, int64_t n) {
  return widen_from_f16(_mm256_maskz_loadu_epi16(first(n), p));
}
inline void store(f16* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_to_f16(a));
}
inline void store(f16* p, Vec a, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow_to_f16(a));
}

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a * b + c
inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a * b
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
inline Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm512_mask_blend_ps(m, no.v, yes.v)}; }
inline Vec keep(Vec a, int64_t n) { return {_mm512_maskz_mov_ps(first(n), a.v)}; }  // 0 from lane n
/// a * 2^n for integral n; overflows to infinity, underflows gradually.
inline Vec scale_by_power(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
/// `magnitude` with the sign of `sign`.
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return {_mm512_castsi512_ps(
      _mm512_or_si512(_mm512_andnot_si512(mask, _mm512_castps_si512(magnitude.v)),
                      _mm512_and_si512(mask, _mm512_castps_si512(sign.v))))};
}

#else  // AVX2

struct Vec {
  static constexpr int lanes = 8;
  __m256 v;
};
struct Mask {
  __m256 m;
};

inline Vec set1(float x) { return {_mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline __m256i first(int64_t n) {
  const int count = n >= 8 ? 8 : static_cast<int>(n);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec load(const float* p, int64_t n) { return {_mm256_maskload_ps(p, first(n))}; }
inline void store(float* p, Vec a, int64_t n) { _mm256_maskstore_ps(p, first(n), a.v); }

inline Vec widen(__m128i h) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
}
inline __m128i narrow(Vec a) {
  const __m256i u = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 nan = _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  r = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(quiet), nan));
  r = _mm256_srli_epi32(r, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
inline Vec load(const bf16* p) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// AVX2 cannot mask 16-bit lanes, so a partial vector is copied through memory. Half is bf16 or f16.
template <class Half>
inline __m128i load_halves(const Half* p, int64_t n) {
  alignas(16) uint16_t bits[8] = {};
  for (int64_t i = 0; i < n && i < 8; ++i) bits[i] = p[i].bits;
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bits));
}
template <class Half>
inline void store_halves(Half* p, __m128i halves, int64_t n) {
  alignas(16) uint16_t bits[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(bits), halves);
  for (int64_t i = 0; i < n && i < 8; ++i) p[i].bits = bits[i];
}
inline Vec load(const bf16* p, int64_t n) { return widen(load_halves(p, n)); }
inline void store(bf16* p, Vec a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(a)); }
inline void store(bf16* p, Vec a, int64_t n) { store_halves(p, narrow(a), n); }

// A NaN becomes the quiet NaN of its sign before it is rounded, as in f16(float).
inline __m128i narrow_to_f16(Vec a) {
  const __m256 nan = _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q);
  const __m256 sign = _mm256_and_ps(a.v, _mm256_set1_ps(-0.0f));
  const __m256 quiet = _mm256_or_ps(sign, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
  return _mm256_cvtps_ph(_mm256_blendv_ps(a.v, quiet, nan), _MM_FROUND_TO_NEAREST_INT);
}
inline Vec widen_from_f16(__m128i h) { return {_mm256_cvtph_ps(h)}; }
inline Vec load(const f16* p) {
  return widen_from_f16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec load(const f16* p, int64_t n) { return widen_from_f16(load_halves(p, n)); }
inline void store(f16* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_to_f16(a));
}
inline void store(f16* p, Vec a, int64_t n) { store_halves(p, narrow_to_f16(a), n); }

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
inline Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Vec round(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Mask less(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm256_blendv_ps(no.v, yes.v, m.m)}; }
inline Vec keep(Vec a, int64_t n) { return {_mm256_and_ps(a.v, _mm256_castsi256_ps(first(n)))}; }
/// a * 2^n for integral n in [-252, 254]. It multiplies by two powers of two whose exponents add up
/// to n, because an f32 may not hold 2^n.
inline Vec scale_by_power(Vec a, Vec n) {
  const __m256i k = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(k, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 low = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 high =
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, half), bias), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, low), high)};
}
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const __m256 mask = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(mask, magnitude.v), _mm256_and_ps(mask, sign.v))};
}

#endif

/// Rounds to T and widens the result again.
template <class T>
Vec rounded(Vec a);
template <>
inline Vec rounded<float>(Vec a) {
  return a;
}
template <>
inline Vec rounded<bf16>(Vec a) {
  return widen(narrow(a));
}
template <>
inline Vec rounded<f16>(Vec a) {
  return widen_from_f16(narrow_to_f16(a));
}

/// Passed to load and store in place of a count if the vector is full. As a type of its own it
/// selects overloads without a mask.
struct All {};
template <class T>
inline Vec load(const T* p, All) {
  return load(p);
}
template <class T>
inline void store(T* p, Vec a, All) {
  store(p, a);
}
inline Vec keep(Vec a, All) { return a; }

/// Calls f(i, count) for the vectors that begin at element i of [0, n). count is an argument for
/// load and store: All, except for a last, shorter vector.
template <class F>
inline void for_vectors(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + Vec::lanes <= n; i += Vec::lanes) f(i, All{});
  if (i < n) f(i, n - i);
}

/// Reduces 16 lanes to 8; with 8 lanes it returns them as they are.
#if defined(__AVX512F__)
inline __m256 fold_add(Vec a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
inline __m256 fold_max(Vec a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
#else
inline __m256 fold_add(Vec a) { return a.v; }
inline __m256 fold_max(Vec a) { return a.v; }
#endif

/// The sum or the maximum of all lanes, combined as a fixed binary tree that adds the halves first.
inline float reduce_add(Vec a) {
  const __m256 eight = fold_add(a);
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float reduce_max(Vec a) {
  const __m256 eight = fold_max(a);
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/// e^x with an error of at most 2 ulp; 0 below -87, infinity above 88.8; NaN stays NaN. The
/// polynomial is that of expf in the Cephes library.
inline Vec exp(Vec x) {
  // Small inputs are common (masked scores are -infinity), and subnormal results would take 25
  // times as long.
  const Vec least = set1(-87.0f);
  // The order of the operands keeps NaN: min and max return their second operand if one is NaN.
  const Vec clamped = min(set1(89.0f), max(least, x));
  const Vec n = round(clamped * set1(1.44269504088896341f));
  Vec r = fnma(n, set1(0.693359375f), clamped);  // ln 2 in two parts
  r = fnma(n, set1(-2.12194440e-4f), r);
  Vec p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + set1(1.0f));
  return select(less(x, least), set1(0.0f), scale_by_power(p, n));
}

/// 1 / (1 + e^-x).
inline Vec sigmoid(Vec x) { return set1(1.0f) / (set1(1.0f) + exp(set1(0.0f) - x)); }

}  // namespace
}  // namespace zg::cpu

// Each *_simd.cpp source defines its table of functions in zg::cpu::ZG_ISA: avx2, avx512 or, in
// kernels/matmul, avx512_bf16 (kernels/cpu/level.h).

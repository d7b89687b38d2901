#pragma once

#include "zerograd/kernels/cpu/philox_simd.h"
#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/optimizer/optimizer_cpu.h"

// Stochastic rounding for the *_simd.cpp sources: the vector form of
// kernels/optimizer/adam_constants.h.
namespace zg::cpu {
namespace {

#if defined(__AVX512F__)

inline void store_words(uint32_t* p, Integers words) { _mm512_storeu_si512(p, words); }

inline __m256i narrow(Vec a, const uint32_t* words) {
  const __m512i u = _mm512_castps_si512(a.v);
  const Mask finite = less(abs(a), set1(__builtin_inff()));
  const Mask nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i word = _mm512_srli_epi32(_mm512_loadu_si512(words), 16);
  __m512i r = _mm512_mask_add_epi32(u, finite, u, word);
  r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}
inline void store(bf16* p, Vec a, const uint32_t* words, All) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(a, words));
}
inline void store(bf16* p, Vec a, const uint32_t* words, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow(a, words));
}

#else

inline void store_words(uint32_t* p, Integers words) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
}

inline __m128i narrow(Vec a, const uint32_t* words) {
  const __m256i u = _mm256_castps_si256(a.v);
  const __m256i finite = _mm256_castps_si256(less(abs(a), set1(__builtin_inff())).m);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i word =
      _mm256_srli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)), 16);
  __m256i r = _mm256_add_epi32(u, _mm256_and_si256(finite, word));
  r = _mm256_or_si256(r, _mm256_and_si256(nan, _mm256_set1_epi32(0x400000)));
  r = _mm256_srli_epi32(r, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
inline void store(bf16* p, Vec a, const uint32_t* words, All) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(a, words));
}
inline void store(bf16* p, Vec a, const uint32_t* words, int64_t n) {
  store_halves(p, narrow(a, words), n);
}

#endif

/// Words of n elements of a parameter from `first` on, in a buffer of at least word_room(n), of
/// which vectors may be read to the end; returns where the first one is.
constexpr int64_t word_room(int64_t n) { return n + 3 + philox_elements; }
inline const uint32_t* fill_words(uint32_t* buffer, const AdamRounding& rounding, int64_t first,
                                  int64_t n) {
  const RoundingKey& key = rounding.key;
  const int64_t skipped = first % 4;
  for (int64_t i = 0; i < skipped + n; i += philox_elements) {
    const PhiloxWords words =
        philox(rounding.keys, (first + i) / 4, static_cast<uint32_t>(key.name), key.step,
               static_cast<uint32_t>(key.name >> 32));
    store_words(buffer + i, words.first);
    store_words(buffer + i + Vec::lanes, words.second);
  }
  return buffer + skipped;
}

}  // namespace
}  // namespace zg::cpu

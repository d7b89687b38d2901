#include "zerograd/kernels/cpu/philox_simd.h"
#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/optimizer/optimizer_cpu.h"

namespace zg::cpu::ZG_ISA {
namespace {

// Stochastic rounding: the vector form of kernels/optimizer/adam_constants.h.
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

/// Writes the random words of n elements of a parameter, from `first` on, to a buffer of at least
/// word_room(n) words, and returns the address of the first one. A vector may read to the buffer's
/// end.
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

struct AdamVectors {
  Vec gradient_scale, l2, beta1, new1, beta2, new2, unbias2, epsilon, keep, move;
};

struct Element {
  Vec parameter, moment1, moment2;
};

// The same operations, line by line, as the plain update of kernels/optimizer/optimizer_cpu.cpp.
template <bool has_l2>
inline Element step(const Element& s, Vec gradient, const AdamVectors& c) {
  Vec g = gradient * c.gradient_scale;
  if (has_l2) g = fma(c.l2, s.parameter, g);
  const Vec m = fma(c.beta1, s.moment1, c.new1 * g);
  const Vec v = fma(c.beta2, s.moment2, c.new2 * (g * g));
  const Vec denominator = fma(sqrt(v), c.unbias2, c.epsilon);
  return {fnma(c.move, m / denominator, c.keep * s.parameter), m, v};
}

/// Updates a range. `words` are its random words for stochastic rounding, or null.
template <class State, class Gradient, class Low, bool has_l2>
void update_range(const AdamRange& range, const AdamVectors& c, bf16* rounded,
                  const uint32_t* words) {
  const Gradient* gradient = static_cast<const Gradient*>(range.gradient);
  State* parameter = static_cast<State*>(range.parameter);
  State* moment1 = static_cast<State*>(range.moment1);
  State* moment2 = static_cast<State*>(range.moment2);
  Low* low_precision = static_cast<Low*>(range.low_precision);
  for_vectors(range.n, [&](int64_t i, auto count) {
    const Element s = step<has_l2>(
        {load(parameter + i, count), load(moment1 + i, count), load(moment2 + i, count)},
        load(gradient + i, count), c);
    store(parameter + i, s.parameter, count);
    store(moment1 + i, s.moment1, count);
    store(moment2 + i, s.moment2, count);
    if (low_precision) store(low_precision + i, s.parameter, count);
    if (words) store(rounded + i, s.parameter, words + i, count);
  });
}

/// The range of elements [begin, begin + n) of `range`.
template <class State, class Gradient, class Low>
AdamRange part(const AdamRange& range, int64_t begin, int64_t n) {
  Low* low_precision = static_cast<Low*>(range.low_precision);
  return {.parameter = static_cast<State*>(range.parameter) + begin,
          .gradient = static_cast<const Gradient*>(range.gradient) + begin,
          .moment1 = static_cast<State*>(range.moment1) + begin,
          .moment2 = static_cast<State*>(range.moment2) + begin,
          .low_precision = low_precision ? low_precision + begin : nullptr,
          .n = n,
          .rounding = nullptr};
}

template <class State, class Gradient, class Low, bool has_l2>
void update_range(const AdamRange& range, const AdamVectors& c) {
  const AdamRounding* rounding = range.rounding;
  if (!rounding) return update_range<State, Gradient, Low, has_l2>(range, c, nullptr, nullptr);
  constexpr int64_t block = 256;  // its random words stay in the L1 cache
  uint32_t buffer[word_room(block)];
  for (int64_t begin = 0; begin < range.n; begin += block) {
    const int64_t n = begin + block < range.n ? block : range.n - begin;
    const uint32_t* words = fill_words(buffer, *rounding, rounding->first + begin, n);
    update_range<State, Gradient, Low, has_l2>(part<State, Gradient, Low>(range, begin, n), c,
                                               rounding->to + begin, words);
  }
}

template <class State, class Gradient, class Low>
void update(const AdamRange& range, const AdamConstants& c) {
  const AdamVectors vectors = {
      set1(c.gradient_scale), set1(c.l2),      set1(c.beta1),   set1(c.new1), set1(c.beta2),
      set1(c.new2),           set1(c.unbias2), set1(c.epsilon), set1(c.keep), set1(c.move)};
  if (c.l2 != 0.0f)
    update_range<State, Gradient, Low, true>(range, vectors);
  else
    update_range<State, Gradient, Low, false>(range, vectors);
}

}  // namespace

extern const AdamTable adam_table;
const AdamTable adam_table = {
    {{update<float, float, bf16>, update<float, float, bf16>, update<float, float, f16>},
     {update<float, bf16, bf16>, update<float, bf16, bf16>, update<float, bf16, f16>}},
    {update<bf16, float, bf16>, update<bf16, bf16, bf16>}};

}  // namespace zg::cpu::ZG_ISA

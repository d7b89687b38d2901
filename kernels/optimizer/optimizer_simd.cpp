#include "zerograd/kernels/cpu/philox_simd.h"
#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/optimizer/optimizer_cpu.h"

namespace zg::cpu::ZG_ISA {
namespace {

// Stochastic rounding: the vector form of kernels/optimizer/update_constants.h.
inline Halves round_by(const uint32_t* words, Part a) {
  Words word;
  __builtin_memcpy(&word, words, sizeof word);
  const Words u = words_of(a), magnitude = u & 0x7fffffffu;
  const Words moved = magnitude < 0x7f800000u ? u + (word >> 16) : u;
  return narrow((magnitude > 0x7f800000u ? u | 0x400000u : moved) >> 16);
}
inline void store(bf16* p, Vec a, const uint32_t* words, int64_t n) {
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i)
    store_some(&p[i * part_lanes].bits, round_by(words + i * part_lanes, a.part[i]),
               n - i * part_lanes);
}
inline void store(bf16* p, Vec a, const uint32_t* words, All) {
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i)
    store_halves(&p[i * part_lanes].bits, round_by(words + i * part_lanes, a.part[i]));
}

/// Writes the random words of n elements of a parameter, from `first` on, to a buffer of at least
/// word_room(n) words, and returns the address of the first one. A vector may read to the buffer's
/// end.
constexpr int64_t word_room(int64_t n) { return n + 3 + philox_elements; }
inline const uint32_t* fill_words(uint32_t* buffer, const UpdateRounding& rounding, int64_t first,
                                  int64_t n) {
  const RoundingKey& key = rounding.key;
  const int64_t skipped = first % 4;
  for (int64_t i = 0; i < skipped + n; i += philox_elements) {
    const PhiloxWords words =
        philox(rounding.keys, (first + i) / 4, static_cast<uint32_t>(key.name), key.step,
               static_cast<uint32_t>(key.name >> 32));
    __builtin_memcpy(buffer + i, &words, sizeof words);
  }
  return buffer + skipped;
}

struct UpdateVectors {
  Vec gradient_scale, l2, beta1, new1, beta2, new2, unbias2, epsilon, keep, move;
  bool nesterov;
};

struct Element {
  Vec parameter, moment1, moment2;
};

/// Updates the moments of an element by its gradient g. Returns the direction d of the update: the
/// new parameter is keep * p - move * d. kernels/README.md explains each line.
template <UpdateKind kind>
inline Vec direction(Vec g, Element& s, const UpdateVectors& c) {
  Vec& m = s.moment1;
  if constexpr (kind == UpdateKind::adam) {
    m = fma(c.beta1, m, c.new1 * g);
    s.moment2 = fma(c.beta2, s.moment2, c.new2 * (g * g));
    return m / fma(sqrt(s.moment2), c.unbias2, c.epsilon);
  } else if constexpr (kind == UpdateKind::lion) {
    const Vec interpolated = fma(c.beta1, m, c.new1 * g), zero = set1(0.0f);
    m = fma(c.beta2, m, c.new2 * g);
    return select(less(zero, interpolated), set1(1.0f),
                  select(less(interpolated, zero), set1(-1.0f), zero));
  } else if constexpr (kind == UpdateKind::momentum) {
    m = fma(c.beta1, m, c.new1 * g);
    return c.nesterov ? fma(c.beta1, m, g) : m;
  } else {
    return g;
  }
}

template <UpdateKind kind, bool has_l2>
inline void step(Element& s, Vec gradient, const UpdateVectors& c) {
  Vec g = gradient * c.gradient_scale;
  if (has_l2) g = fma(c.l2, s.parameter, g);
  const Vec moved = direction<kind>(g, s, c);
  s.parameter = fnma(c.move, moved, c.keep * s.parameter);
}

/// Updates a range. `words` are its random words for stochastic rounding, or null.
template <UpdateKind kind, class State, class Gradient, class Low, bool has_l2>
void update_range(const UpdateRange& range, const UpdateVectors& c, bf16* rounded,
                  const uint32_t* words) {
  const Gradient* gradient = static_cast<const Gradient*>(range.gradient);
  State* parameter = static_cast<State*>(range.parameter);
  State* moment1 = static_cast<State*>(range.moment1);
  State* moment2 = static_cast<State*>(range.moment2);
  Low* low_precision = static_cast<Low*>(range.low_precision);
  for_vectors(range.n, [&](int64_t i, auto count) {
    Element s = {load(parameter + i, count), set1(0.0f), set1(0.0f)};
    if constexpr (has_moment1(kind)) s.moment1 = load(moment1 + i, count);
    if constexpr (has_moment2(kind)) s.moment2 = load(moment2 + i, count);
    step<kind, has_l2>(s, load(gradient + i, count), c);
    store(parameter + i, s.parameter, count);
    if constexpr (has_moment1(kind)) store(moment1 + i, s.moment1, count);
    if constexpr (has_moment2(kind)) store(moment2 + i, s.moment2, count);
    if (low_precision) store(low_precision + i, s.parameter, count);
    if (words) store(rounded + i, s.parameter, words + i, count);
  });
}

/// The range of elements [begin, begin + n) of `range`.
template <class State, class Gradient, class Low>
UpdateRange part(const UpdateRange& range, int64_t begin, int64_t n) {
  const auto at = [begin](auto* element) { return element ? element + begin : nullptr; };
  return {.parameter = at(static_cast<State*>(range.parameter)),
          .gradient = at(static_cast<const Gradient*>(range.gradient)),
          .moment1 = at(static_cast<State*>(range.moment1)),
          .moment2 = at(static_cast<State*>(range.moment2)),
          .low_precision = at(static_cast<Low*>(range.low_precision)),
          .n = n,
          .rounding = nullptr};
}

template <UpdateKind kind, class State, class Gradient, class Low, bool has_l2>
void update_range(const UpdateRange& range, const UpdateVectors& c) {
  const UpdateRounding* rounding = range.rounding;
  if (!rounding)
    return update_range<kind, State, Gradient, Low, has_l2>(range, c, nullptr, nullptr);
  constexpr int64_t block = 256;  // its random words stay in the L1 cache
  uint32_t buffer[word_room(block)];
  for (int64_t begin = 0; begin < range.n; begin += block) {
    const int64_t n = begin + block < range.n ? block : range.n - begin;
    const uint32_t* words = fill_words(buffer, *rounding, rounding->first + begin, n);
    update_range<kind, State, Gradient, Low, has_l2>(part<State, Gradient, Low>(range, begin, n), c,
                                                     rounding->to + begin, words);
  }
}

template <UpdateKind kind, class State, class Gradient, class Low>
void update(const UpdateRange& range, const UpdateConstants& c) {
  const UpdateVectors vectors = {set1(c.gradient_scale), set1(c.l2),      set1(c.beta1),
                                 set1(c.new1),           set1(c.beta2),   set1(c.new2),
                                 set1(c.unbias2),        set1(c.epsilon), set1(c.keep),
                                 set1(c.move),           c.nesterov};
  if (c.l2 != 0.0f)
    update_range<kind, State, Gradient, Low, true>(range, vectors);
  else
    update_range<kind, State, Gradient, Low, false>(range, vectors);
}

}  // namespace

extern const UpdateTable update_table;
const UpdateTable update_table = ZG_UPDATE_TABLE(update);

namespace {

template <class Leaf, class Rounding, class Sum, bool first>
void fold(const void* leaf, void* sum, int64_t n) {
  const Leaf* x = static_cast<const Leaf*>(leaf);
  Sum* y = static_cast<Sum*>(sum);
  const Vec zero = set1(0.0f);
  int64_t i = 0;
  for (; i + Vec::lanes <= n; i += Vec::lanes)
    store(y + i, (first ? zero : load(y + i)) + rounded<Rounding>(load(x + i)));
  if (const int64_t rest = n - i)
    store(y + i, (first ? zero : load(y + i, rest)) + rounded<Rounding>(load(x + i, rest)), rest);
}

}  // namespace

extern const FoldTable fold_table;
const FoldTable fold_table = ZG_FOLD_TABLE(fold);

namespace {

#if defined(__AVX2__)

// The square of a widened f32, bf16 or f16 is exact in f64, so a fused multiply-add gives the same
// result as a product followed by a sum.
#if defined(__AVX512F__)

/// s[i] + s[i + 8], then by distance 4.
template <class T>
inline __m256d fold_to_four(const T* x) {
  const __m512 v = load_part(x);
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
  const __m512d t = _mm512_fmadd_pd(high, high, _mm512_mul_pd(low, low));
  return _mm256_add_pd(_mm512_castpd512_pd256(t), _mm512_extractf64x4_pd(t, 1));
}

#else

/// Squares of lanes 0 to 3 (half 0) or 4 to 7 of a, plus those of b.
template <int half>
inline __m256d add_squares(Part a, Part b) {
  const __m256d low = _mm256_cvtps_pd(_mm256_extractf128_ps(a, half));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(b, half));
  return _mm256_fmadd_pd(high, high, _mm256_mul_pd(low, low));
}

template <class T>
inline __m256d fold_to_four(const T* x) {
  const Part a = load_part(x), b = load_part(x + 8);
  return _mm256_add_pd(add_squares<0>(a, b), add_squares<1>(a, b));
}

#endif

template <class T>
void granule_sums(const void* data, int64_t count, double* sums) {
  const T* x = static_cast<const T*>(data);
  for (int64_t i = 0; i < count; ++i) {
    const __m256d four = fold_to_four(x + 16 * i);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    _mm_store_sd(sums + i, _mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
}

#else

template <class T>
constexpr GranuleSums granule_sums = nullptr;

#endif

}  // namespace

extern const GranuleTable granule_table;
const GranuleTable granule_table = {
    {nullptr, granule_sums<float>, granule_sums<bf16>, granule_sums<f16>}};

}  // namespace zg::cpu::ZG_ISA

#include "zerograd/kernels/cpu/functions_simd.h"
#include "zerograd/kernels/cpu/philox_simd.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/kernels/optimizer/optimizer_cpu.h"

namespace zg::cpu::ZG_ISA {
namespace {

// Stochastic rounding: the vector form of kernels/optimizer/update_constants.h.
inline Halves round_by(const uint32_t* words, Part a) {
  const Words u = words_of(a), magnitude = u & 0x7fffffffu;
  const Words moved = magnitude < 0x7f800000u ? u + (read<Words>(words) >> 16) : u;
  return narrow((magnitude > 0x7f800000u ? u | 0x400000u : moved) >> 16);
}
inline void store(bf16* p, Vec a, const uint32_t* words, int64_t n) {
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i)
    store_some(&p[i * part_lanes].bits, round_by(words + i * part_lanes, a.part[i]),
               n - i * part_lanes);
}
inline void store(bf16* p, Vec a, const uint32_t* words, All) { store(p, a, words, Vec::lanes); }

/// Writes the random words of n elements of the range, from `begin` on, to a buffer of at least
/// word_room(n) words, and returns the address of the first one. A vector may read to the buffer's
/// end.
constexpr int64_t word_room(int64_t n) { return n + 3 + philox_elements; }
inline const uint32_t* fill_words(uint32_t* buffer, const UpdateRounding& rounding, int64_t begin,
                                  int64_t n) {
  const RoundingKey& key = rounding.key;
  const int64_t first = rounding.first + begin, skipped = first % 4;
  for (int64_t i = 0; i < skipped + n; i += philox_elements) {
    const PhiloxWords words =
        philox(rounding.keys, (first + i) / 4, static_cast<uint32_t>(key.name), key.step,
               static_cast<uint32_t>(key.name >> 32));
    __builtin_memcpy(buffer + i, &words, sizeof words);
  }
  return buffer + skipped;
}

struct UpdateVectors {
  Vec l2, beta1, new1, beta2, new2, unbias2, epsilon;
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
    const Vec interpolated = fma(c.beta1, m, c.new1 * g);
    m = fma(c.beta2, m, c.new2 * g);
    return select(0.0 < interpolated, 1.0, select(interpolated < 0.0, -1.0, 0.0));
  } else if constexpr (kind == UpdateKind::momentum) {
    m = fma(c.beta1, m, c.new1 * g);
    return c.nesterov ? fma(c.beta1, m, g) : m;
  } else {
    return g;
  }
}

template <UpdateKind kind, class State, class Gradient, class Low>
void update(const UpdateRange& range, const UpdateConstants& constants) {
  const UpdateVectors c = {constants.l2,      constants.beta1,   constants.new1,
                           constants.beta2,   constants.new2,    constants.unbias2,
                           constants.epsilon, constants.nesterov};
  const Vec gradient_scale = constants.gradient_scale, keep = constants.keep, move = constants.move;
  const Gradient* gradient = static_cast<const Gradient*>(range.gradient);
  State* parameter = static_cast<State*>(range.parameter);
  State* moment1 = static_cast<State*>(range.moment1);
  State* moment2 = static_cast<State*>(range.moment2);
  Low* low_precision = static_cast<Low*>(range.low_precision);
  const UpdateRounding* rounding = range.rounding;
  const bool has_l2 = constants.l2 != 0.0f;
  constexpr int64_t block = 256;  // its random words stay in the L1 cache
  uint32_t buffer[word_room(block)];
  for (int64_t begin = 0; begin < range.n; begin += block) {
    const int64_t n = begin + block < range.n ? block : range.n - begin;
    const uint32_t* words = rounding ? fill_words(buffer, *rounding, begin, n) : nullptr;
    for_vectors(n, [&](int64_t j, auto count) {
      const int64_t i = begin + j;
      Element s = {load(parameter + i, count), 0.0, 0.0};
      if constexpr (has_moment1(kind)) s.moment1 = load(moment1 + i, count);
      if constexpr (has_moment2(kind)) s.moment2 = load(moment2 + i, count);
      Vec g = load(gradient + i, count) * gradient_scale;
      if (has_l2) g = fma(c.l2, s.parameter, g);
      const Vec moved = direction<kind>(g, s, c);
      s.parameter = fnma(move, moved, keep * s.parameter);
      store(parameter + i, s.parameter, count);
      if constexpr (has_moment1(kind)) store(moment1 + i, s.moment1, count);
      if constexpr (has_moment2(kind)) store(moment2 + i, s.moment2, count);
      if (low_precision) store(low_precision + i, s.parameter, count);
      if (words) store(rounding->to + i, s.parameter, words + j, count);
    });
  }
}

template <UpdateKind kind>
constexpr UpdateVariants variants = {
    {{update<kind, float, float, bf16>, update<kind, float, float, bf16>,
      update<kind, float, float, f16>},
     {update<kind, float, bf16, bf16>, update<kind, float, bf16, bf16>,
      update<kind, float, bf16, f16>}},
    {update<kind, bf16, float, bf16>, update<kind, bf16, bf16, bf16>}};

}  // namespace

extern const UpdateTable update_table;
const UpdateTable update_table = {{variants<UpdateKind::adam>, variants<UpdateKind::lion>,
                                   variants<UpdateKind::momentum>, variants<UpdateKind::descent>}};

namespace {

template <class Leaf, class Rounding, class Sum, bool first>
void fold(const void* leaf, void* sum, int64_t n) {
  const Leaf* x = static_cast<const Leaf*>(leaf);
  Sum* y = static_cast<Sum*>(sum);
  for_vectors(n, [&](int64_t i, auto count) {
    const Vec before = first ? 0.0 : load(y + i, count);
    store(y + i, before + rounded<Rounding>(load(x + i, count)), count);
  });
}

template <class Leaf, class Rounding>
constexpr FoldTable::Sums sums = {
    {{fold<Leaf, Rounding, float, false>, fold<Leaf, Rounding, float, true>},
     {fold<Leaf, Rounding, bf16, false>, fold<Leaf, Rounding, bf16, true>}}};
template <class Leaf>
constexpr FoldTable::Roundings roundings = {{sums<Leaf, float>, sums<Leaf, bf16>, sums<Leaf, f16>}};

}  // namespace

extern const FoldTable fold_table;
const FoldTable fold_table = {{roundings<float>, roundings<bf16>, roundings<f16>}};

namespace {

/// The squares of a granule, added down to one register by the distances 8 to double_lanes.
template <class T>
inline Doubles squares(const T* x) {
  Sixteen s;
  if constexpr (std::is_same_v<T, double>)
    __builtin_memcpy(&s, x, sizeof s);
  else
    s = widen(load(x));
  for (Doubles& part : s.part) part *= part;
  for (int width = parts; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) s.part[k] += s.part[k + width];
  return s.part[0];
}

/// The sums of 2 * distance registers, a register of each `stride`, by the distances down to 1: in
/// lane i that of register i.
template <int distance>
inline void add_lanes(Doubles* rows) {
  if constexpr (distance > 0) {
    constexpr auto indices = std::make_index_sequence<double_lanes>();
#pragma GCC unroll 4
    for (int i = 0; i < distance; ++i)
      rows[i] = even_blocks<distance>(rows[i], rows[i + distance], indices) +
                odd_blocks<distance>(rows[i], rows[i + distance], indices);
    add_lanes<distance / 2>(rows);
  }
}

template <class T>
void granule_sums(const void* data, int64_t count, double* sums) {
  const T* x = static_cast<const T*>(data);
  for (int64_t g = 0; g < count; g += double_lanes, x += double_lanes * Vec::lanes) {
    Doubles rows[double_lanes];
    if (g + double_lanes <= count)
#pragma GCC unroll 8
      for (int i = 0; i < double_lanes; ++i) rows[i] = squares(x + i * Vec::lanes);
    else
      for (int i = 0; i < double_lanes; ++i)
        rows[i] = g + i < count ? squares(x + i * Vec::lanes) : Doubles{};
    add_lanes<double_lanes / 2>(rows);
    __builtin_memcpy(sums + g, rows, sizeof rows[0]);
  }
  for (int64_t g = (count + double_lanes - 1) / double_lanes * double_lanes; g % 8 != 0; ++g)
    sums[g] = 0.0;
}

#if defined(__AVX2__)
inline Doublewords up(Doublewords a, Doublewords places) {
#if defined(__AVX512F__)
  return (Doublewords)_mm512_sllv_epi64((__m512i)a, (__m512i)places);
#else
  return (Doublewords)_mm256_sllv_epi64((__m256i)a, (__m256i)places);
#endif
}
inline Doublewords down(Doublewords a, Doublewords places) {
#if defined(__AVX512F__)
  return (Doublewords)_mm512_srlv_epi64((__m512i)a, (__m512i)places);
#else
  return (Doublewords)_mm256_srlv_epi64((__m256i)a, (__m256i)places);
#endif
}

/// The biased exponent of a double whose mantissa's lowest bit is that of limb 0.
constexpr int lowest_biased_exponent = 1075 + SumOfSquares::lowest_exponent;

/// The limb that holds the lowest bit of the mantissa.
inline int limb_of(double x) {
  const auto exponent = static_cast<int>(__builtin_bit_cast(uint64_t, x) >> 52);
  return (exponent - lowest_biased_exponent) / SumOfSquares::limb_bits;
}

bool add_sums(const double* sums, int64_t count, int64_t* limbs) {
  constexpr int bits = SumOfSquares::limb_bits;
  constexpr double limit = 0x1p520, least_whole = 0x1p-468;
  Doubles lows = limit - Doubles{}, highs = {}, total = {};
  for (int64_t i = 0; i < count; i += double_lanes) {
    const auto x = read<Doubles>(sums + i);
    const Doubles positive = x > 0.0 ? x : limit;
    lows = positive < lows ? positive : lows;
    highs = x > highs ? x : highs;
    total += x;
  }
  double low = limit, high = 0.0, zero_if_finite = 0.0;
  for (int i = 0; i < double_lanes; ++i) {
    if (lows[i] < low) low = lows[i];
    if (highs[i] > high) high = highs[i];
    zero_if_finite += 0.0 * total[i];
  }
  if (!(low >= least_whole && high < limit && zero_if_finite == 0.0)) return false;
  // A pass adds the sums whose lowest bits lie in `limb`. Gradients of one tensor need one or two.
  const int last = high > 0.0 ? limb_of(high) : -1;
  for (int limb = limb_of(low); limb <= last; ++limb) {
    Doublewords digits[3] = {};
    for (int64_t i = 0; i < count; i += double_lanes) {
      const auto u = read<Doublewords>(sums + i);
      const Doublewords place = (u >> 52) - (lowest_biased_exponent + bits * limb);
      Doublewords mantissa = (u & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
      mantissa = place < bits ? mantissa : 0;
      const Doublewords upper = down(mantissa, bits - place);
      digits[0] += up(mantissa, place) & ((uint64_t{1} << bits) - 1);
      digits[1] += upper & ((uint64_t{1} << bits) - 1);
      digits[2] += upper >> bits;
    }
    for (int k = 0; k < 3; ++k)
      for (int i = 0; i < double_lanes; ++i) limbs[limb + k] += static_cast<int64_t>(digits[k][i]);
  }
  return true;
}
#else
constexpr AddSums add_sums = nullptr;  // shifts of lanes by different counts would cost more
#endif

}  // namespace

extern const GranuleTable granule_table;
const GranuleTable granule_table = {
    {granule_sums<double>, granule_sums<float>, granule_sums<bf16>, granule_sums<f16>}, add_sums};

}  // namespace zg::cpu::ZG_ISA

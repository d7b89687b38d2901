#include "zerograd/kernels/cpu/functions_simd.h"
#include "zerograd/kernels/cpu/philox_simd.h"
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

template <class T>
void granule_sums(const void* data, int64_t count, double* sums) {
  const T* x = static_cast<const T*>(data);
  constexpr auto indices = std::make_index_sequence<double_lanes>();
  for (int64_t g = 0; g < count; ++g, x += Vec::lanes) {
    Sixteen s;
    if constexpr (std::is_same_v<T, double>)
      __builtin_memcpy(&s, x, sizeof s);
    else
      s = widen(load(x));
    for (Doubles& part : s.part) part *= part;
    for (int width = parts; width > 0; width /= 2)
      for (int k = 0; k < width; ++k) s.part[k] += s.part[k + width];
    Doubles sum = s.part[0];
    if constexpr (double_lanes > 4) sum += odd_blocks<4>(sum, sum, indices);
    if constexpr (double_lanes > 2) sum += odd_blocks<2>(sum, sum, indices);
    sums[g] = sum[0] + sum[1];
  }
}

}  // namespace

extern const GranuleTable granule_table;
const GranuleTable granule_table = {
    {granule_sums<double>, granule_sums<float>, granule_sums<bf16>, granule_sums<f16>}};

}  // namespace zg::cpu::ZG_ISA

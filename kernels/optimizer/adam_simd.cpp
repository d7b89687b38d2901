#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/optimizer/optimizer_cpu.h"
#include "zerograd/kernels/optimizer/rounding_simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

struct AdamVectors {
  Vec gradient_scale, l2, beta1, new1, beta2, new2, unbias2, epsilon, keep, move;
};

struct Element {
  Vec parameter, moment1, moment2;
};

// Line by line the plain update of kernels/optimizer/optimizer_cpu.cpp, for the same bits.
template <bool has_l2>
inline Element step(const Element& s, Vec gradient, const AdamVectors& c) {
  Vec g = gradient * c.gradient_scale;
  if (has_l2) g = fma(c.l2, s.parameter, g);
  const Vec m = fma(c.beta1, s.moment1, c.new1 * g);
  const Vec v = fma(c.beta2, s.moment2, c.new2 * (g * g));
  const Vec denominator = fma(sqrt(v), c.unbias2, c.epsilon);
  return {fnma(c.move, m / denominator, c.keep * s.parameter), m, v};
}

/// `words` are null, or those of the range for stochastic rounding.
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

/// Elements [begin, begin + n) of a range.
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
  constexpr int64_t block = 256;  // its words stay in the nearest cache
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

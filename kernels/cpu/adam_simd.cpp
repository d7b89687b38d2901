#include "kernels/cpu/adam.h"
#include "kernels/cpu/simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

struct AdamVectors {
  Vec gradient_scale, l2, beta1, new1, beta2, new2, unbias2, epsilon, keep, move;
};

struct State {
  Vec parameter, moment1, moment2;
};

// Line by line the plain update of kernels/cpu/adam.cpp, for the same bits.
template <bool has_l2>
inline State step(const State& s, Vec gradient, const AdamVectors& c) {
  Vec g = gradient * c.gradient_scale;
  if (has_l2) g = fma(c.l2, s.parameter, g);
  const Vec m = fma(c.beta1, s.moment1, c.new1 * g);
  const Vec v = fma(c.beta2, s.moment2, c.new2 * (g * g));
  const Vec denominator = fma(sqrt(v), c.unbias2, c.epsilon);
  return {fnma(c.move, m / denominator, c.keep * s.parameter), m, v};
}

template <class Gradient, class Low, bool has_l2>
void update_range(const AdamRange& range, const AdamVectors& c) {
  const Gradient* gradient = static_cast<const Gradient*>(range.gradient);
  Low* low_precision = static_cast<Low*>(range.low_precision);
  int64_t i = 0;
  for (; i + Vec::lanes <= range.n; i += Vec::lanes) {
    const State s =
        step<has_l2>({load(range.parameter + i), load(range.moment1 + i), load(range.moment2 + i)},
                     load(gradient + i), c);
    store(range.parameter + i, s.parameter);
    store(range.moment1 + i, s.moment1);
    store(range.moment2 + i, s.moment2);
    if (low_precision) store(low_precision + i, s.parameter);
  }
  if (const int64_t rest = range.n - i) {
    const State s = step<has_l2>({load(range.parameter + i, rest), load(range.moment1 + i, rest),
                                  load(range.moment2 + i, rest)},
                                 load(gradient + i, rest), c);
    store(range.parameter + i, s.parameter, rest);
    store(range.moment1 + i, s.moment1, rest);
    store(range.moment2 + i, s.moment2, rest);
    if (low_precision) store(low_precision + i, s.parameter, rest);
  }
}

template <class Gradient, class Low>
void update(const AdamRange& range, const AdamConstants& c) {
  const AdamVectors vectors = {
      set1(c.gradient_scale), set1(c.l2),      set1(c.beta1),   set1(c.new1), set1(c.beta2),
      set1(c.new2),           set1(c.unbias2), set1(c.epsilon), set1(c.keep), set1(c.move)};
  if (c.l2 != 0.0f)
    update_range<Gradient, Low, true>(range, vectors);
  else
    update_range<Gradient, Low, false>(range, vectors);
}

}  // namespace

extern const AdamTable adam_table;
const AdamTable adam_table = {{{update<float, bf16>, update<float, bf16>, update<float, f16>},
                               {update<bf16, bf16>, update<bf16, bf16>, update<bf16, f16>}}};

}  // namespace zg::cpu::ZG_ISA

#include "kernels/cpu/adam.h"

#include <cmath>

#include "kernels/adam.h"
#include "kernels/cpu/level.h"
#include "runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(AdamTable, adam_table)

namespace {

// The definition of the step: kernels/README.md explains each line, and every other version has to
// give these bits. std::fma rounds once on every machine, by a libm call where there is no
// instruction.
template <class State, class Gradient, class Low>
void update(const AdamRange& range, const AdamConstants& c) {
  const Gradient* gradient = static_cast<const Gradient*>(range.gradient);
  State* parameter = static_cast<State*>(range.parameter);
  State* moment1 = static_cast<State*>(range.moment1);
  State* moment2 = static_cast<State*>(range.moment2);
  Low* low_precision = static_cast<Low*>(range.low_precision);
  for (int64_t i = 0; i < range.n; ++i) {
    const float p = static_cast<float>(parameter[i]);
    float g = static_cast<float>(gradient[i]) * c.gradient_scale;
    if (c.l2 != 0.0f) g = std::fma(c.l2, p, g);
    const float m = std::fma(c.beta1, static_cast<float>(moment1[i]), c.new1 * g);
    const float v = std::fma(c.beta2, static_cast<float>(moment2[i]), c.new2 * (g * g));
    const float denominator = std::fma(std::sqrt(v), c.unbias2, c.epsilon);
    const float next = std::fma(-c.move, m / denominator, c.keep * p);
    moment1[i] = State(m);
    moment2[i] = State(v);
    parameter[i] = State(next);
    if (low_precision) low_precision[i] = Low(next);
  }
}

constexpr AdamTable portable = {
    {{update<float, float, bf16>, update<float, float, bf16>, update<float, float, f16>},
     {update<float, bf16, bf16>, update<float, bf16, bf16>, update<float, bf16, f16>}},
    {update<bf16, float, bf16>, update<bf16, bf16, bf16>}};

// Memory bound: 28 bytes an element with f32 gradients. A chunk is half a megabyte, enough to hide
// the cost of handing it out.
constexpr int64_t chunk_elements = 1 << 14;

std::byte* at(const Tensor& tensor, int64_t element) {
  return tensor ? tensor.raw() + element * size_of(tensor.dtype()) : nullptr;
}

}  // namespace

void adam(const Adam& a, Workspace, Stream& stream) {
  const AdamTable* level = ZG_AT_LEVEL(stream.traits().isa, adam_table);
  const AdamTable& table = level ? *level : portable;
  const int low = !a.low_precision ? 0 : a.low_precision.dtype() == DType::bf16 ? 1 : 2;
  const bool bf16_gradient = a.gradient.dtype() == DType::bf16;
  const AdamUpdate update = a.parameter.dtype() == DType::bf16 ? table.narrow[bf16_gradient]
                                                               : table.update[bf16_gradient][low];
  const AdamConstants numbers = constants(a);
  parallel_for(stream.traits().threads, a.parameter.numel(), chunk_elements,
               [&](int64_t begin, int64_t end) {
                 update({.parameter = at(a.parameter, begin),
                         .gradient = at(a.gradient, begin),
                         .moment1 = at(a.moment1, begin),
                         .moment2 = at(a.moment2, begin),
                         .low_precision = at(a.low_precision, begin),
                         .n = end - begin},
                        numbers);
               });
}

}  // namespace zg::cpu

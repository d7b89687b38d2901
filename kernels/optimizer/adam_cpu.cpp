#include "zerograd/kernels/optimizer/adam_cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/optimizer/adam.h"
#include "zerograd/runtime/cpu/team.h"

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
  const AdamRounding* rounding = range.rounding;
  Philox::Block words = {};
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
    if (!rounding) continue;
    const int64_t element = rounding->first + i;
    if (i == 0 || element % 4 == 0) words = rounding->key.block(element);
    rounding->to[i].bits =
        stochastic_bf16(std::bit_cast<uint32_t>(next), words[static_cast<size_t>(element % 4)]);
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

/// Elements [begin, end) of one tensor.
void update_part(const Adam& a, const AdamTensor& t, int64_t begin, int64_t end,
                 AdamUpdate update) {
  std::optional<AdamRounding> rounding;
  if (a.rounding_seed)
    rounding = {
        .to = reinterpret_cast<bf16*>(at(t.low_precision ? t.low_precision : t.parameter, begin)),
        .key = rounding_key(a, t),
        .keys = philox_keys(*a.rounding_seed),
        .first = t.first + begin};
  update({.parameter = at(t.parameter, begin),
          .gradient = at(t.gradient, begin),
          .moment1 = at(t.moment1, begin),
          .moment2 = at(t.moment2, begin),
          .low_precision = at(t.low_precision, begin),
          .n = end - begin,
          .rounding = rounding ? &*rounding : nullptr},
         constants(a, t.weight_decay));
}

}  // namespace

void adam(const Adam& a, Workspace, Stream& stream) {
  if (a.tensors.empty()) return;
  const AdamTensor& first = a.tensors[0];
  const AdamTable* level = ZG_AT_LEVEL(stream.traits().isa, adam_table);
  const AdamTable& table = level ? *level : portable;
  const int low = !first.low_precision ? 0 : first.low_precision.dtype() == DType::bf16 ? 1 : 2;
  const bool bf16_gradient = first.gradient.dtype() == DType::bf16;
  const AdamUpdate update = first.parameter.dtype() == DType::bf16
                                ? table.narrow[bf16_gradient]
                                : table.update[bf16_gradient][low];
  // Chunks of all tensors laid end to end: many small ones are one, and one large is many.
  std::vector<int64_t> ends;
  int64_t numel = 0;
  for (const AdamTensor& tensor : a.tensors) ends.push_back(numel += tensor.parameter.numel());
  parallel_for(stream.traits().threads, numel, chunk_elements, [&](int64_t begin, int64_t end) {
    auto last = std::upper_bound(ends.begin(), ends.end(), begin);
    for (; begin < end; ++last) {
      const AdamTensor& tensor = a.tensors[static_cast<size_t>(last - ends.begin())];
      const int64_t start = *last - tensor.parameter.numel(), until = std::min(end, *last);
      if (begin < until) update_part(a, tensor, begin - start, until - start, update);
      begin = until;
    }
  });
}

}  // namespace zg::cpu

#include "zerograd/kernels/elementwise/dropout_cpu.h"

#include <algorithm>
#include <cmath>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(DropoutTable, dropout_table)

DropoutMask dropout_mask(const DropoutKey& key, float probability) {
  return {.seed = key.seed,
          .keys = philox_keys(key.seed),
          .step = key.step,
          .sample = key.sample,
          .site = key.site,
          // uniform(word) < p is equivalent to (word >> 8) < p 2^24, an exact product. Both sides
          // are multiplied by 256, so that no shift is needed.
          .threshold = static_cast<uint32_t>(std::ceil(probability * 0x1p24f)) << 8,
          .probability = probability,
          .scale = 1.0f / (1.0f - probability)};
}

namespace {

template <class T>
void apply(const DropoutRange& range, const DropoutMask& mask) {
  using A = accumulator_t<T>;
  constexpr int64_t block = 64;
  const T* x = static_cast<const T*>(range.x);
  const T* residual = static_cast<const T*>(range.residual);
  T* y = static_cast<T*>(range.y);
  for (int64_t begin = 0; begin < range.n; begin += block) {
    const int64_t n = std::min(block, range.n - begin);
    A factor[block];
    fill_factors(factor, mask, range.sample, range.first + begin, n);
    for (int64_t i = 0; i < n; ++i) {
      // A dropped element is 0 even where x is infinite or NaN.
      const A kept = factor[i] == A(0) ? A(0) : static_cast<A>(x[begin + i]) * factor[i];
      y[begin + i] = T(residual ? kept + static_cast<A>(residual[begin + i]) : kept);
    }
  }
}

constexpr DropoutTable plain = {{apply<double>, apply<float>, apply<bf16>, apply<f16>}};

// Philox takes about a nanosecond for a vector of 32 elements, so a task takes about ten
// microseconds with it. A multiple of 4, because a Philox counter gives the words of four elements.
constexpr int64_t task_elements = 1 << 14;

}  // namespace

void dropout(const Dropout& a, Workspace, Stream& stream) {
  const int64_t samples = a.x.extent(0);
  if (a.x.numel() == 0) return;
  const int64_t elements = a.x.numel() / samples, element_bytes = size_of(a.x.dtype());
  const int type = static_cast<int>(a.x.dtype());
  const auto vectors = ZG_AT_LEVEL(stream.traits().isa, dropout_table).apply[type];
  const DropoutMask mask = dropout_mask(a.key, a.probability);
  const DropoutSlice slice = dropout_slice("dropout", a.probability, a.x.shape(), a.key);

  const int64_t ranges = (elements + task_elements - 1) / task_elements;  // ranges in one sample
  const int64_t group = std::max<int64_t>(1, task_elements / elements);   // samples in one task
  const int64_t groups = (samples + group - 1) / group;
  team(stream.traits().threads, groups * ranges, [&](int64_t task, int) {
    const int64_t first = task % ranges * task_elements;
    const int64_t last = std::min(elements, first + task_elements);
    const int64_t begin = task / ranges * group, end = std::min(samples, begin + group);
    for (int64_t sample = begin; sample < end; ++sample)
      for (int64_t e = first, n = 0; e < last; e += n) {
        const int64_t offset = (sample * elements + e) * element_bytes, index = slice.at(e);
        n = std::min(last - e, slice.row - e % slice.row);
        // The elements up to the next counter's first come alone, so that vectors begin with it.
        const bool aligned = vectors && index % 4 == 0;
        if (vectors && !aligned) n = std::min(n, 4 - index % 4);
        const auto apply = aligned ? vectors : plain.apply[type];
        apply({.x = a.x.raw() + offset,
               .residual = a.residual ? a.residual.raw() + offset : nullptr,
               .y = a.y.raw() + offset,
               .sample = a.key.sample + static_cast<uint32_t>(sample),
               .first = index,
               .n = n},
              mask);
      }
  });
}

}  // namespace zg::cpu

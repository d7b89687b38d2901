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

// Philox takes about a nanosecond for a vector of 32 elements, so a task takes about ten
// microseconds with it. A multiple of 4, because a Philox counter gives the words of four elements.
constexpr int64_t task_elements = 1 << 14;

}  // namespace

void dropout(const Dropout& a, Workspace, Stream& stream) {
  const int64_t samples = a.x.extent(0);
  if (a.x.numel() == 0) return;
  const int64_t elements = a.x.numel() / samples, element_bytes = size_of(a.x.dtype());
  const auto apply =
      ZG_AT_LEVEL(stream.traits().isa, dropout_table).apply[static_cast<size_t>(a.x.dtype())];
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
        const int64_t offset = (sample * elements + e) * element_bytes;
        n = std::min(last - e, slice.row - e % slice.row);
        apply({.x = a.x.raw() + offset,
               .residual = a.residual ? a.residual.raw() + offset : nullptr,
               .y = a.y.raw() + offset,
               .sample = a.key.sample + static_cast<uint32_t>(sample),
               .first = slice.at(e),
               .n = n},
              mask);
      }
  });
}

}  // namespace zg::cpu

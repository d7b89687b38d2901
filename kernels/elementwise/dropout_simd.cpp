#include "zerograd/kernels/elementwise/dropout_cpu.h"

#include "zerograd/kernels/cpu/philox_simd.h"
#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

// Not a fused multiply-add, so that every instruction set gives the bits of the plain version.
template <class T>
inline void keep(const T* x, const T* residual, T* y, Mask kept, Vec scale, int64_t n) {
  if (n <= 0) return;
  const bool whole = n >= Vec::lanes;
  Vec value = select(kept, (whole ? load(x) : load(x, n)) * scale, set1(0.0f));
  if (residual) value = value + (whole ? load(residual) : load(residual, n));
  whole ? store(y, value) : store(y, value, n);
}

template <class T>
void apply(const DropoutRange& range, const DropoutMask& mask) {
  const T* x = static_cast<const T*>(range.x);
  const T* residual = static_cast<const T*>(range.residual);
  T* y = static_cast<T*>(range.y);
  const Vec scale = set1(mask.scale);
  PhiloxWords words = {};
  for (int64_t i = 0; i < range.n; i += philox_elements) {
    if (mask.probability > 0.0f) words = philox(mask, range.sample, (range.first + i) / 4);
    const Mask first = at_least(words.first, mask.threshold);
    const Mask second = at_least(words.second, mask.threshold);
    constexpr int64_t half = Vec::lanes;
    keep(x + i, residual ? residual + i : nullptr, y + i, first, scale, range.n - i);
    keep(x + i + half, residual ? residual + i + half : nullptr, y + i + half, second, scale,
         range.n - i - half);
  }
}

}  // namespace

extern const DropoutTable dropout_table;
const DropoutTable dropout_table = {{nullptr, apply<float>, apply<bf16>, apply<f16>}};

}  // namespace zg::cpu::ZG_ISA

#include "zerograd/kernels/attention/rope_cpu.h"
#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

template <class T>
void rotate(const RopeToken& a) {
  const int64_t half = a.rotated / 2;
  const float *cosines = static_cast<const float*>(a.row), *sines = cosines + half;
  const Vec sign = set1(a.backward ? -1.0f : 1.0f);
  for (int64_t h = 0; h < a.heads; ++h) {
    const T* x = static_cast<const T*>(a.x) + h * a.D;
    T* y = static_cast<T*>(a.y) + h * a.D;
    for_vectors(half, [&](int64_t i, auto count) {
      const Vec first = load(x + i, count), second = load(x + half + i, count);
      const Vec cosine = load(cosines + i, count), sine = load(sines + i, count) * sign;
      store(y + i, fnma(second, sine, first * cosine), count);
      store(y + half + i, fma(first, sine, second * cosine), count);
    });
    if (y == x) continue;
    for_vectors(a.D - a.rotated, [&](int64_t i, auto count) {
      store(y + a.rotated + i, load(x + a.rotated + i, count), count);
    });
  }
}

}  // namespace

extern const RopeTable rope_rotations;
const RopeTable rope_rotations = {{nullptr, rotate<float>, rotate<bf16>, rotate<f16>}};

}  // namespace zg::cpu::ZG_ISA

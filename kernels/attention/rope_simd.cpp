#include "zerograd/kernels/attention/rope_cpu.h"
#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

template <class T>
void rotate(const RopeToken& a) {
  using A = accumulator_t<T>;
  const int64_t half = a.rotated / 2;
  const A *cosines = static_cast<const A*>(a.row), *sines = cosines + half;
  const VecOf<T> sign = a.backward ? A(-1) : A(1);
  for (int64_t h = 0; h < a.heads; ++h) {
    const T* x = static_cast<const T*>(a.x) + h * a.D;
    T* y = static_cast<T*>(a.y) + h * a.D;
    for_vectors<T>(half, [&](int64_t i, auto count) {
      const auto first = load(x + i, count), second = load(x + half + i, count);
      const auto cosine = load(cosines + i, count), sine = load(sines + i, count) * sign;
      store(y + i, fnma(second, sine, first * cosine), count);
      store(y + half + i, fma(first, sine, second * cosine), count);
    });
    if (y == x) continue;
    for_vectors<T>(a.D - a.rotated, [&](int64_t i, auto count) {
      store(y + a.rotated + i, load(x + a.rotated + i, count), count);
    });
  }
}

}  // namespace

extern const RopeTable rope_rotations;
const RopeTable rope_rotations = {{rotate<double>, rotate<float>, rotate<bf16>, rotate<f16>}};

}  // namespace zg::cpu::ZG_ISA

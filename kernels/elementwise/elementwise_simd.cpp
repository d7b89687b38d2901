#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"

namespace zg::cpu {
namespace {

/// f(i, n) with n lanes from element i; the last call may have fewer.
template <class Whole, class Part>
void for_vectors(int64_t n, const Whole& whole, const Part& part) {
  int64_t i = 0;
  for (; i + Vec::lanes <= n; i += Vec::lanes) whole(i);
  if (i < n) part(i, n - i);
}

template <class X, class Y>
void axpby(const void* from, void* to, float a, float b, int64_t n) {
  const X* x = static_cast<const X*>(from);
  Y* y = static_cast<Y*>(to);
  const Vec va = set1(a), vb = set1(b);
  if (b == 0.0f) {  // y may be uninitialised: NaN * 0 must not reach the result
    for_vectors(
        n, [&](int64_t i) { store(y + i, va * load(x + i)); },
        [&](int64_t i, int64_t m) { store(y + i, va * load(x + i, m), m); });
    return;
  }
  for_vectors(
      n, [&](int64_t i) { store(y + i, va * load(x + i) + vb * load(y + i)); },
      [&](int64_t i, int64_t m) { store(y + i, va * load(x + i, m) + vb * load(y + i, m), m); });
}

template <class X, class Y>
void cast(const void* from, void* to, int64_t n) {
  const X* x = static_cast<const X*>(from);
  Y* y = static_cast<Y*>(to);
  for_vectors(
      n, [&](int64_t i) { store(y + i, load(x + i)); },
      [&](int64_t i, int64_t m) { store(y + i, load(x + i, m), m); });
}

struct Add {
  static Vec of(Vec a, Vec b) { return a + b; }
};
struct Subtract {
  static Vec of(Vec a, Vec b) { return a - b; }
};
struct Multiply {
  static Vec of(Vec a, Vec b) { return a * b; }
};
struct Divide {
  static Vec of(Vec a, Vec b) { return a / b; }
};

inline float scalar(const float* p) { return *p; }
inline float scalar(const bf16* p) {
  const uint32_t bits = uint32_t{p->bits} << 16;
  return __builtin_bit_cast(float, bits);
}

template <class Op, class T>
void binary(const void* left, int64_t stride_a, const void* right, int64_t stride_b, void* to,
            int64_t n) {
  const T* a = static_cast<const T*>(left);
  const T* b = static_cast<const T*>(right);
  T* y = static_cast<T*>(to);
  if (stride_a == 1 && stride_b == 1) {
    for_vectors(
        n, [&](int64_t i) { store(y + i, Op::of(load(a + i), load(b + i))); },
        [&](int64_t i, int64_t m) { store(y + i, Op::of(load(a + i, m), load(b + i, m)), m); });
  } else if (stride_a == 1) {
    const Vec vb = set1(scalar(b));
    for_vectors(
        n, [&](int64_t i) { store(y + i, Op::of(load(a + i), vb)); },
        [&](int64_t i, int64_t m) { store(y + i, Op::of(load(a + i, m), vb), m); });
  } else {
    const Vec va = set1(scalar(a));
    for_vectors(
        n, [&](int64_t i) { store(y + i, Op::of(va, load(b + i))); },
        [&](int64_t i, int64_t m) { store(y + i, Op::of(va, load(b + i, m)), m); });
  }
}

}  // namespace

namespace ZG_ISA {
extern const ElementwiseTable elementwise_table;
const ElementwiseTable elementwise_table = {
    .axpby = {{axpby<float, float>, axpby<float, bf16>}, {axpby<bf16, float>, axpby<bf16, bf16>}},
    .cast = {{nullptr, cast<float, bf16>}, {cast<bf16, float>, nullptr}},
    .binary = {{binary<Add, float>, binary<Add, bf16>},
               {binary<Subtract, float>, binary<Subtract, bf16>},
               {binary<Multiply, float>, binary<Multiply, bf16>},
               {binary<Divide, float>, binary<Divide, bf16>}},
};
}  // namespace ZG_ISA
}  // namespace zg::cpu

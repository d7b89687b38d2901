#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"

namespace zg::cpu {
namespace {

template <class X, class Y>
void axpby(const void* from, void* to, float a, float b, int64_t n) {
  const X* x = static_cast<const X*>(from);
  Y* y = static_cast<Y*>(to);
  const Vec va = set1(a), vb = set1(b);
  if (b == 0.0f) {  // y may be uninitialised: NaN * 0 must not reach the result
    for_vectors(n, [&](int64_t i, auto count) { store(y + i, va * load(x + i, count), count); });
    return;
  }
  for_vectors(n, [&](int64_t i, auto count) {
    store(y + i, va * load(x + i, count) + vb * load(y + i, count), count);
  });
}

template <class X, class Y>
void cast(const void* from, void* to, int64_t n) {
  const X* x = static_cast<const X*>(from);
  Y* y = static_cast<Y*>(to);
  for_vectors(n, [&](int64_t i, auto count) { store(y + i, load(x + i, count), count); });
}

Vec add(Vec a, Vec b) { return a + b; }
Vec subtract(Vec a, Vec b) { return a - b; }
Vec multiply(Vec a, Vec b) { return a * b; }
Vec divide(Vec a, Vec b) { return a / b; }

inline float scalar(const float* p) { return *p; }
inline float scalar(const bf16* p) {
  const uint32_t bits = uint32_t{p->bits} << 16;
  return __builtin_bit_cast(float, bits);
}

template <class T, Vec (*op)(Vec, Vec)>
void binary(const void* left, int64_t stride_a, const void* right, int64_t stride_b, void* to,
            int64_t n) {
  const T* a = static_cast<const T*>(left);
  const T* b = static_cast<const T*>(right);
  T* y = static_cast<T*>(to);
  if (stride_a == 1 && stride_b == 1) {
    for_vectors(n, [&](int64_t i, auto count) {
      store(y + i, op(load(a + i, count), load(b + i, count)), count);
    });
  } else if (stride_a == 1) {
    const Vec vb = set1(scalar(b));
    for_vectors(n, [&](int64_t i, auto count) { store(y + i, op(load(a + i, count), vb), count); });
  } else {
    const Vec va = set1(scalar(a));
    for_vectors(n, [&](int64_t i, auto count) { store(y + i, op(va, load(b + i, count)), count); });
  }
}

}  // namespace

namespace ZG_ISA {
extern const ElementwiseTable elementwise_table;
const ElementwiseTable elementwise_table = {
    .axpby = {{axpby<float, float>, axpby<float, bf16>}, {axpby<bf16, float>, axpby<bf16, bf16>}},
    .cast = {{nullptr, cast<float, bf16>}, {cast<bf16, float>, nullptr}},
    .binary = {{binary<float, add>, binary<bf16, add>},
               {binary<float, subtract>, binary<bf16, subtract>},
               {binary<float, multiply>, binary<bf16, multiply>},
               {binary<float, divide>, binary<bf16, divide>}},
};
}  // namespace ZG_ISA
}  // namespace zg::cpu

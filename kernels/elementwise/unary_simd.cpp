#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"

namespace zg::cpu {
namespace {

/// Cephes tanhf: a polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
Vec hyperbolic_tangent(Vec x) {
  const Vec magnitude = abs(x), square = x * x;
  Vec p = set1(-5.70498872745e-3f);
  p = fma(p, square, set1(2.06390887954e-2f));
  p = fma(p, square, set1(-5.37397155531e-2f));
  p = fma(p, square, set1(1.33314422036e-1f));
  p = fma(p, square, set1(-3.33332819422e-1f));
  const Vec small = fma(p * square, x, x);
  const Vec large = set1(1.0f) - set1(2.0f) / (exp(magnitude + magnitude) + set1(1.0f));
  return select(less(magnitude, set1(0.625f)), small, copy_sign(large, x));
}

struct Exp {
  static Vec of(Vec x) { return exp(x); }
};
struct Tanh {
  static Vec of(Vec x) { return hyperbolic_tangent(x); }
};
struct Sigmoid {
  static Vec of(Vec x) { return sigmoid(x); }
};
struct Silu {
  static Vec of(Vec x) { return x / (set1(1.0f) + exp(set1(0.0f) - x)); }
};

template <class Op, class T>
void map(const void* from, void* to, int64_t n) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  int64_t i = 0;
  for (; i + Vec::lanes <= n; i += Vec::lanes) store(y + i, Op::of(load(x + i)));
  if (i < n) store(y + i, Op::of(load(x + i, n - i)), n - i);
}

}  // namespace

namespace ZG_ISA {
extern const UnaryTable unary_table;
const UnaryTable unary_table = {
    .exp = {map<Exp, float>, map<Exp, bf16>},
    .tanh = {map<Tanh, float>, map<Tanh, bf16>},
    .sigmoid = {map<Sigmoid, float>, map<Sigmoid, bf16>},
    .silu = {map<Silu, float>, map<Silu, bf16>},
};
}  // namespace ZG_ISA
}  // namespace zg::cpu

#include "zerograd/kernels/norm/layer_norm_cpu.h"

#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

// Memory bound. A row is read three times, but it comes from memory once: even 64 Ki elements of
// f32 fit the second-level cache.

template <class T>
inline const T* row_of(const void* data, int64_t row, int64_t C) {
  return static_cast<const T*>(data) + row * C;
}
template <class T>
inline T* row_of(void* data, int64_t row, int64_t C) {
  return static_cast<T*>(data) + row * C;
}

template <class T, bool centred>
void forward(const NormForward& a, int64_t begin, int64_t end) {
  using A = accumulator_t<T>;
  using V = VecOf<T>;
  const int64_t C = a.C;
  const A width = static_cast<A>(C);
  const T* gamma = static_cast<const T*>(a.gamma);
  const T* beta = static_cast<const T*>(a.beta);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = row_of<T>(a.x, row, C);
    T* y = row_of<T>(a.y, row, C);
    if (a.residual) {
      const T* residual = row_of<T>(a.residual, row, C);
      T* sum = row_of<T>(a.sum, row, C);
      for_vectors<T>(C, [&](int64_t i, auto count) {
        store(sum + i, load(x + i, count) + load(residual + i, count), count);
      });
      x = sum;  // rounded, because backward reads the rounded sum
    }
    V mean = A(0);
    if (centred) {
      const A sum = sum_of<T, 4>(C, [&](int64_t i, auto count) { return load(x + i, count); });
      mean = *row_of<A>(a.mean, row, 1) = sum / width;
    }
    const A squares = sum_of<T, 4>(C, [&](int64_t i, auto count) {
      const V d = load(x + i, count) - mean;
      return d * d;
    });
    const V rstd = A(1) / sqrt(V(squares / width + a.epsilon));
    *row_of<A>(a.rstd, row, 1) = first_lane(rstd);
    for_vectors<T>(C, [&](int64_t i, auto count) {
      const V scaled = (load(x + i, count) - mean) * rstd;
      const V shift = beta ? load(beta + i, count) : V(A(0));
      store(y + i, fma(scaled, load(gamma + i, count), shift), count);
    });
  }
}

template <class T, bool centred>
void backward(const NormBackward& a, int64_t begin, int64_t end, void* dgamma, void* dbeta) {
  using A = accumulator_t<T>;
  using V = VecOf<T>;
  const int64_t C = a.C;
  const V width = static_cast<A>(C), zero = A(0);
  const T* gamma = static_cast<const T*>(a.gamma);
  A* gamma_sum = static_cast<A*>(dgamma);
  A* beta_sum = static_cast<A*>(dbeta);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = row_of<T>(a.x, row, C);
    const T* dy = row_of<T>(a.dy, row, C);
    const V mean = centred ? *row_of<A>(a.mean, row, 1) : A(0);
    const V rstd = *row_of<A>(a.rstd, row, 1);
    // With g = dy * gamma, the gradient of scaled = (x - mean) * rstd:
    // dx = rstd * (g - mean(g) - scaled * mean(g * scaled)), where RMSNorm has no mean(g). Lanes
    // beyond the row load dy = 0 and add nothing.
    V sum_g = zero, sum_gs = zero;
    for_vectors<T>(C, [&](int64_t i, auto count) {
      const V d = load(dy + i, count);
      const V scaled = (load(x + i, count) - mean) * rstd;
      const V g = d * load(gamma + i, count);
      if (centred) sum_g = sum_g + g;
      sum_gs = fma(g, scaled, sum_gs);
      if (gamma_sum) store(gamma_sum + i, fma(d, scaled, load(gamma_sum + i, count)), count);
      if (beta_sum) store(beta_sum + i, d + load(beta_sum + i, count), count);
    });
    const V mean_g = V(reduce_add(sum_g)) / width, mean_gs = V(reduce_add(sum_gs)) / width;
    const T* dsum = a.dsum ? row_of<T>(a.dsum, row, C) : nullptr;
    T* dx = row_of<T>(a.dx, row, C);
    for_vectors<T>(C, [&](int64_t i, auto count) {
      const V scaled = (load(x + i, count) - mean) * rstd;
      const V g = load(dy + i, count) * load(gamma + i, count);
      const V direct = dsum ? load(dsum + i, count) : zero;
      const V slope = fnma(scaled, mean_gs, g - mean_g);
      if (dsum && a.rounds_twice)
        store(dx + i, rounded<T>(fma(slope, rstd, zero)) + direct, count);
      else
        store(dx + i, fma(slope, rstd, direct), count);
    });
  }
}

template <class T, bool centred>
constexpr NormFunctions functions = {forward<T, centred>, backward<T, centred>};

template <bool centred>
constexpr NormTable::ByType types = {{functions<double, centred>, functions<float, centred>,
                                      functions<bf16, centred>, functions<f16, centred>}};

}  // namespace

extern const NormTable norm_table;
const NormTable norm_table = {types<true>, types<false>};

}  // namespace zg::cpu::ZG_ISA

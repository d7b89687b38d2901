#include "zerograd/kernels/norm/layer_norm_cpu.h"

#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

// Memory bound. A row is read three times, but it comes from memory once: even 64 Ki elements of
// f32 fit the second-level cache.

/// Sum of term(i, count) over a row: four vectors of partial sums in one fixed tree.
template <class F>
inline float row_sum(int64_t C, const F& term) {
  constexpr int64_t stride = 4 * Vec::lanes;
  Vec sum[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  const int64_t whole = C / stride * stride;
  for (int64_t i = 0; i < whole; i += stride)
    for (int k = 0; k < 4; ++k) sum[k] = sum[k] + term(i + k * Vec::lanes, All{});
  for_vectors(C - whole, [&](int64_t i, auto count) {
    sum[0] = sum[0] + keep(term(whole + i, count), count);
  });
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <class T>
inline const T* row_of(const void* data, int64_t row, int64_t C) {
  return static_cast<const T*>(data) + row * C;
}
template <class T>
inline T* row_of(void* data, int64_t row, int64_t C) {
  return static_cast<T*>(data) + row * C;
}

template <class T>
inline void add_rows(const T* a, const T* b, T* sum, int64_t C) {
  for_vectors(C, [&](int64_t i, auto count) {
    store(sum + i, load(a + i, count) + load(b + i, count), count);
  });
}

template <class T, bool centred>
void forward(const NormForward& a, int64_t begin, int64_t end) {
  const int64_t C = a.C;
  const float width = static_cast<float>(C);
  const T* gamma = static_cast<const T*>(a.gamma);
  const T* beta = static_cast<const T*>(a.beta);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = row_of<T>(a.x, row, C);
    T* y = row_of<T>(a.y, row, C);
    if (a.residual) {
      add_rows(x, row_of<T>(a.residual, row, C), row_of<T>(a.sum, row, C), C);
      x = row_of<T>(a.sum, row, C);
    }
    Vec mean = set1(0.0f);
    if (centred) {
      mean = set1(row_sum(C, [&](int64_t i, auto count) { return load(x + i, count); }) / width);
      store(row_of<float>(a.mean, row, 1), mean, 1);
    }
    const float variance = row_sum(C,
                                   [&](int64_t i, auto count) {
                                     const Vec d = load(x + i, count) - mean;
                                     return d * d;
                                   }) /
                           width;
    const Vec rstd = set1(1.0f) / sqrt(set1(variance + a.epsilon));
    store(row_of<float>(a.rstd, row, 1), rstd, 1);
    for_vectors(C, [&](int64_t i, auto count) {
      const Vec scaled = (load(x + i, count) - mean) * rstd;
      const Vec shift = beta ? load(beta + i, count) : set1(0.0f);
      store(y + i, fma(scaled, load(gamma + i, count), shift), count);
    });
  }
}

template <class T, bool centred>
void backward(const NormBackward& a, int64_t begin, int64_t end, void* dgamma, void* dbeta) {
  const int64_t C = a.C;
  const Vec width = set1(static_cast<float>(C));
  const T* gamma = static_cast<const T*>(a.gamma);
  float* gamma_sum = static_cast<float*>(dgamma);
  float* beta_sum = static_cast<float*>(dbeta);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = row_of<T>(a.x, row, C);
    const T* dy = row_of<T>(a.dy, row, C);
    const Vec mean = set1(centred ? *row_of<float>(a.mean, row, 1) : 0.0f);
    const Vec rstd = set1(*row_of<float>(a.rstd, row, 1));
    // The sums of g and g * scaled, g = dy * gamma being the gradient of scaled. Lanes beyond the
    // row load dy = 0 and add nothing.
    Vec sum_g = set1(0.0f), sum_gs = set1(0.0f);
    for_vectors(C, [&](int64_t i, auto count) {
      const Vec d = load(dy + i, count);
      const Vec scaled = (load(x + i, count) - mean) * rstd;
      const Vec g = d * load(gamma + i, count);
      if (centred) sum_g = sum_g + g;
      sum_gs = fma(g, scaled, sum_gs);
      if (gamma_sum) store(gamma_sum + i, fma(d, scaled, load(gamma_sum + i, count)), count);
      if (beta_sum) store(beta_sum + i, d + load(beta_sum + i, count), count);
    });
    const Vec mean_g = set1(reduce_add(sum_g)) / width;
    const Vec mean_gs = set1(reduce_add(sum_gs)) / width;
    const T* dsum = a.dsum ? row_of<T>(a.dsum, row, C) : nullptr;
    T* dx = row_of<T>(a.dx, row, C);
    for_vectors(C, [&](int64_t i, auto count) {
      const Vec scaled = (load(x + i, count) - mean) * rstd;
      const Vec g = load(dy + i, count) * load(gamma + i, count);
      const Vec direct = dsum ? load(dsum + i, count) : set1(0.0f);
      const Vec slope = fnma(scaled, mean_gs, g - mean_g);
      if (dsum && a.rounds_twice)
        store(dx + i, rounded<T>(fma(slope, rstd, set1(0.0f))) + direct, count);
      else
        store(dx + i, fma(slope, rstd, direct), count);
    });
  }
}

template <class T, bool centred>
constexpr NormFunctions functions = {forward<T, centred>, backward<T, centred>};

}  // namespace

extern const NormTable norm_table;
const NormTable norm_table = {
    {{}, functions<float, true>, functions<bf16, true>, functions<f16, true>},
    {{}, functions<float, false>, functions<bf16, false>, functions<f16, false>}};

}  // namespace zg::cpu::ZG_ISA

#include "zerograd/kernels/cpu/rows_table.h"
#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu {
namespace {

template <class T>
double row_max(const void* row, int64_t n) {
  const T* x = static_cast<const T*>(row);
  const auto larger = [](auto a, auto b) { return max(b, a); };  // a, where b is NaN
  return reduce_max(combine<T, 2>(
      n, -__builtin_inf(), [&](int64_t i, auto count) { return load(x + i, count); }, larger));
}

/// Exponentials are summed in the accumulator type over blocks, the blocks in f64.
template <class T>
double row_exp_sum(const void* row, double shift, int64_t n) {
  constexpr int64_t block = 1024;
  const VecOf<T> s = shift;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += block) {
    const T* x = static_cast<const T*>(row) + begin;
    total += sum_of<T, 2>(n - begin < block ? n - begin : block,
                          [&](int64_t i, auto count) { return exp(load(x + i, count) - s); });
  }
  return total;
}

template <class X, class Y>
void row_scaled_exp(const void* from, double shift, double scale, void* to, int64_t n) {
  const X* x = static_cast<const X*>(from);
  Y* y = static_cast<Y*>(to);
  const VecOf<X> s = shift, factor = scale;
  for_vectors<X>(
      n, [&](int64_t i, auto count) { store(y + i, exp(load(x + i, count) - s) * factor, count); });
}

}  // namespace

namespace ZG_ISA {
extern const RowTable row_table;
const RowTable row_table = {
    .max = {row_max<double>, row_max<float>, row_max<bf16>, row_max<f16>},
    .exp_sum = {row_exp_sum<double>, row_exp_sum<float>, row_exp_sum<bf16>, row_exp_sum<f16>},
    .scaled_exp = {{row_scaled_exp<double, double>, row_scaled_exp<float, float>,
                    row_scaled_exp<bf16, bf16>, row_scaled_exp<f16, f16>},
                   {row_scaled_exp<double, double>, row_scaled_exp<float, float>,
                    row_scaled_exp<float, bf16>, row_scaled_exp<float, f16>}},
};
}  // namespace ZG_ISA
}  // namespace zg::cpu

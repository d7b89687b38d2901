#include "zerograd/kernels/cpu/rows_table.h"
#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu {
namespace {

constexpr float infinity = __builtin_inff();

/// Loads n elements; the other lanes become `other`.
template <class T>
Vec load_or(const T* x, int64_t n, float other) {
  alignas(64) float lane[Vec::lanes];
  for (int i = 0; i < Vec::lanes; ++i) lane[i] = static_cast<float>(i);
  return select(less(load(lane), set1(static_cast<float>(n))), load(x, n), set1(other));
}

template <class T>
float row_max(const void* row, int64_t n) {
  const T* x = static_cast<const T*>(row);
  Vec a = set1(-infinity), b = a;
  int64_t i = 0;
  for (; i + 2 * Vec::lanes <= n; i += 2 * Vec::lanes) {
    a = max(load(x + i), a);
    b = max(load(x + i + Vec::lanes), b);
  }
  for (; i < n; i += Vec::lanes)
    a = max(n - i >= Vec::lanes ? load(x + i) : load_or(x + i, n - i, -infinity), a);
  return reduce_max(max(a, b));
}

template <class T>
double row_exp_sum(const void* row, float shift, int64_t n) {
  const T* x = static_cast<const T*>(row);
  const Vec s = set1(shift);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += exp_sum_block) {
    const int64_t end = begin + exp_sum_block < n ? begin + exp_sum_block : n;
    Vec a = set1(0.0f), b = a;
    int64_t i = begin;
    for (; i + 2 * Vec::lanes <= end; i += 2 * Vec::lanes) {
      a = a + exp(load(x + i) - s);
      b = b + exp(load(x + i + Vec::lanes) - s);
    }
    for (; i < end; i += Vec::lanes)
      a = a + exp((end - i >= Vec::lanes ? load(x + i) : load_or(x + i, end - i, -infinity)) - s);
    total += static_cast<double>(reduce_add(a + b));
  }
  return total;
}

template <class X, class Y>
void row_scaled_exp(const void* from, float shift, float scale, void* to, int64_t n) {
  const X* x = static_cast<const X*>(from);
  Y* y = static_cast<Y*>(to);
  const Vec s = set1(shift), factor = set1(scale);
  int64_t i = 0;
  for (; i + Vec::lanes <= n; i += Vec::lanes) store(y + i, exp(load(x + i) - s) * factor);
  if (i < n) store(y + i, exp(load(x + i, n - i) - s) * factor, n - i);
}

}  // namespace

namespace ZG_ISA {
extern const RowTable row_table;
const RowTable row_table = {
    .max = {row_max<float>, row_max<bf16>},
    .exp_sum = {row_exp_sum<float>, row_exp_sum<bf16>},
    .scaled_exp = {{row_scaled_exp<float, float>, row_scaled_exp<float, bf16>},
                   {row_scaled_exp<bf16, float>, row_scaled_exp<bf16, bf16>}},
};
}  // namespace ZG_ISA
}  // namespace zg::cpu

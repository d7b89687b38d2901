#pragma once

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/cpu/rows_table.h"
#include "zerograd/runtime/dtype.h"

// Passes over one row, for softmax and cross-entropy.
namespace zg::cpu {

ZG_DECLARE_LEVELS(RowTable, row_table)

template <class T>
inline constexpr auto type_index = static_cast<size_t>(dtype_of<T>);
static_assert(type_index<double> == 0 && type_index<f16> == 3);

template <class T>
accumulator_t<T> row_max(const RowTable& table, const T* x, int64_t n) {
  return static_cast<accumulator_t<T>>(table.max[type_index<T>](x, n));
}
template <class T>
double row_exp_sum(const RowTable& table, const T* x, accumulator_t<T> shift, int64_t n) {
  return table.exp_sum[type_index<T>](x, shift, n);
}
template <class T>
void add_rows(const RowTable& table, const T* const* rows, int64_t count, accumulator_t<T>* sums,
              int64_t n) {
  table.add_rows[type_index<T>](reinterpret_cast<const void* const*>(rows), count, sums, n);
}
template <class X, class Y>
void row_scaled_exp(const RowTable& table, const X* x, accumulator_t<X> shift,
                    accumulator_t<X> scale, Y* y, int64_t n) {
  constexpr bool from_accumulator = std::is_same_v<X, accumulator_t<Y>>;
  static_assert(from_accumulator || std::is_same_v<X, Y>);
  table.scaled_exp[from_accumulator][type_index<Y>](x, shift, scale, y, n);
}

}  // namespace zg::cpu

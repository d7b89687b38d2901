#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/cpu/rows_table.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/portable_math.h"

// Passes over one row, for softmax and cross-entropy: vector code for f32 and bf16, plain C++ for
// f64 and f16.
namespace zg::cpu {

ZG_DECLARE_LEVELS(RowTable, row_table)

template <class T>
inline constexpr bool in_vectors = std::is_same_v<T, float> || std::is_same_v<T, bf16>;
template <class T>
inline constexpr int narrow_index = std::is_same_v<T, bf16> ? 1 : 0;

/// The largest element; -infinity for an empty row. A NaN may be ignored or returned.
template <class T>
accumulator_t<T> row_max(const RowTable& table, const T* x, int64_t n) {
  using A = accumulator_t<T>;
  if constexpr (in_vectors<T>) return table.max[narrow_index<T>](x, n);
  A best = -std::numeric_limits<A>::infinity();
  for (int64_t i = 0; i < n; ++i) best = std::max(best, static_cast<A>(x[i]));
  return best;
}

/// Sum of exp(x - shift).
template <class T>
double row_exp_sum(const RowTable& table, const T* x, accumulator_t<T> shift, int64_t n) {
  using A = accumulator_t<T>;
  if constexpr (in_vectors<T>) return table.exp_sum[narrow_index<T>](x, shift, n);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += exp_sum_block) {
    A sum = 0;
    for (int64_t i = begin; i < std::min(begin + exp_sum_block, n); ++i)
      sum += portable::exp(static_cast<A>(x[i]) - shift);
    total += static_cast<double>(sum);
  }
  return total;
}

/// y = exp(x - shift) * scale; y may be x.
template <class X, class Y>
void row_scaled_exp(const RowTable& table, const X* x, accumulator_t<X> shift,
                    accumulator_t<X> scale, Y* y, int64_t n) {
  if constexpr (in_vectors<X> && in_vectors<Y>)
    return table.scaled_exp[narrow_index<X>][narrow_index<Y>](x, shift, scale, y, n);
  for (int64_t i = 0; i < n; ++i)
    y[i] = static_cast<Y>(portable::exp(static_cast<accumulator_t<X>>(x[i]) - shift) * scale);
}

}  // namespace zg::cpu

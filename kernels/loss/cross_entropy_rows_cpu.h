#pragma once

#include "zerograd/kernels/cpu/rows.h"

// Row functions that plain and projection-fused cross entropy share: on a row of logits, or on a
// chunk of its columns.
namespace zg::cpu {

/// Elements of logits in one task.
constexpr int64_t rows_per_task(int64_t columns) {
  return std::max<int64_t>((1 << 14) / std::max<int64_t>(columns, 1), 1);
}

/// A log-sum-exp over parts of a row. Milakov, Gimelshein 2018, arXiv:1805.02867, algorithm 3.
struct OnlineLogSumExp {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;     ///< sum of exp(logit - max)
  double target = 0;  ///< the target's logit, once its part has passed

  /// `place` is the target's within this part, or outside [0, n).
  template <class T>
  void add(const RowTable* table, const T* logits, int64_t n, int64_t place) {
    const accumulator_t<T> best = row_max(table, logits, n);
    if (static_cast<double>(best) > max) {
      sum *= std::exp(max - static_cast<double>(best));
      max = static_cast<double>(best);
    }
    // Without a largest element all are -infinity or NaN; a shift of 0 keeps them what they are.
    const bool none = max == -std::numeric_limits<double>::infinity();
    sum += row_exp_sum(table, logits, static_cast<accumulator_t<T>>(none ? 0.0 : max), n);
    if (place >= 0 && place < n) target = static_cast<double>(logits[place]);
  }
  double log_sum() const {
    return max == -std::numeric_limits<double>::infinity() ? std::log(sum) : max + std::log(sum);
  }
};

/// out = (exp(logits - log_sum) - onehot(place)) * dloss; out may be logits.
template <class X, class Y>
void cross_entropy_gradient(const RowTable* table, const X* logits, int64_t n, int64_t place,
                            accumulator_t<X> log_sum, accumulator_t<X> dloss, Y* out) {
  const bool inside = place >= 0 && place < n;
  const accumulator_t<X> own = inside ? static_cast<accumulator_t<X>>(logits[place]) : 0;
  row_scaled_exp(table, logits, log_sum, dloss, out, n);
  if (inside) out[place] = static_cast<Y>(std::expm1(own - log_sum) * dloss);
}

}  // namespace zg::cpu

#pragma once

#include <cstdint>

namespace zg::cpu {

/// Passes over one row, compiled per instruction set, by the dtype of x or, in scaled_exp, of y:
/// f64, f32, bf16, f16.
struct RowTable {
  /// The largest element; -infinity for an empty row; NaN if one element is.
  double (*max[4])(const void* x, int64_t n);
  /// Sum of exp(x - shift).
  double (*exp_sum[4])(const void* x, double shift, int64_t n);
  /// y = exp(x - shift) * scale. x has y's type (and may be y) or, with the index 1, its
  /// accumulator type.
  void (*scaled_exp[2][4])(const void* x, double shift, double scale, void* y, int64_t n);
  /// Adds `count` rows to n sums in the accumulator type, one after another.
  void (*add_rows[4])(const void* const* rows, int64_t count, void* sums, int64_t n);
  /// Sums and maxima of each of up to 16 rows of n elements, `step` elements apart; of f32, bf16
  /// and f16. A sum is one of 16 lanes over blocks of 128 elements, in f64 over the blocks.
  void (*sums[3])(const void* x, int64_t rows, int64_t step, int64_t n, double* totals);
  void (*maxima[3])(const void* x, int64_t rows, int64_t step, int64_t n, float* totals);
  /// softmax or log_softmax of each of some neighbouring columns, whose n elements are `step`
  /// apart, or of a row, if `step` is 1. Sums have one order for both. y may be x.
  void (*softmax[4])(const void* x, void* y, int64_t n, int64_t step, int64_t columns, bool log);
  /// The backward of softmax, from its result y. dx may be dy.
  void (*softmax_slopes[4])(const void* y, const void* dy, void* dx, int64_t n, int64_t step,
                            int64_t columns, bool log);
};

}  // namespace zg::cpu

#include "zerograd/kernels/cpu/rows_table.h"
#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/cpu/transpose_simd.h"

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

/// softmax of as many columns as a vector has lanes, or the first `count`. The sums have the order
/// of row_exp_sum().
template <class T, class Count>
void softmax_of_lanes(const T* x, T* y, int64_t n, int64_t step, bool log, Count count) {
  constexpr int64_t block = 1024, lanes = lanes_of<T>, width = 2 * lanes;
  VecOf<T> best = -__builtin_inf();
  for (int64_t i = 0; i < n; ++i) best = max(load(x + i * step, count), best);
  double totals[lanes] = {};
  accumulator_t<T> numbers[lanes];
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t size = n - begin < block ? n - begin : block, whole = size / width * width;
    VecOf<T> sums[width];
    for (VecOf<T>& sum : sums) sum = 0.0;
    for (int64_t i = 0; i < size; ++i) {
      VecOf<T>& sum = sums[i < whole ? i % width : (i - whole) % lanes];
      sum = sum + exp(load(x + (begin + i) * step, count) - best);
    }
    for (int64_t distance = lanes; distance > 0; distance /= 2)
      for (int64_t i = 0; i < distance; ++i) sums[i] = sums[i] + sums[i + distance];
    store(numbers, sums[0]);
    for (int64_t k = 0; k < lanes; ++k) totals[k] += static_cast<double>(numbers[k]);
  }
  for (int64_t k = 0; k < lanes; ++k)
    numbers[k] = static_cast<accumulator_t<T>>(log ? portable::log(totals[k]) : 1 / totals[k]);
  const VecOf<T> number = load(numbers);
  for (int64_t i = 0; i < n; ++i) {
    const VecOf<T> shifted = load(x + i * step, count) - best;
    store(y + i * step, log ? shifted - number : exp(shifted) * number, count);
  }
}

template <class T>
void softmax_columns(const void* from, void* to, int64_t n, int64_t step, int64_t columns,
                     bool log) {
  for_vectors<T>(columns, [&](int64_t k, auto count) {
    softmax_of_lanes(static_cast<const T*>(from) + k, static_cast<T*>(to) + k, n, step, log, count);
  });
}

/// slope - exp(value) * sum for log_softmax, value * (slope - sum) for softmax.
template <class T>
VecOf<T> softmax_slope(VecOf<T> value, VecOf<T> slope, VecOf<T> sum, bool log) {
  return log ? slope - exp(value) * sum : value * (slope - sum);
}

/// softmax_slopes of as many columns as a vector has lanes, or the first `count`; sums in f64.
template <class T, class Count>
void slopes_of_lanes(const T* y, const T* dy, T* dx, int64_t n, int64_t step, bool log,
                     Count count) {
  constexpr int64_t lanes = lanes_of<T>;
  double totals[lanes] = {};
  accumulator_t<T> numbers[lanes];
  for (int64_t i = 0; i < n; ++i) {
    const VecOf<T> slope = load(dy + i * step, count);
    store(numbers, log ? slope : slope * load(y + i * step, count));
    for (int64_t k = 0; k < lanes; ++k) totals[k] += static_cast<double>(numbers[k]);
  }
  for (int64_t k = 0; k < lanes; ++k) numbers[k] = static_cast<accumulator_t<T>>(totals[k]);
  const VecOf<T> sums = load(numbers);
  for (int64_t i = 0; i < n; ++i) {
    const VecOf<T> value = load(y + i * step, count), slope = load(dy + i * step, count);
    store(dx + i * step, softmax_slope<T>(value, slope, sums, log), count);
  }
}

/// The terms of 16 rows are transposed, so that each row has the order of additions of a column.
template <class T>
void softmax_row_slopes(const void* from_y, const void* from_dy, void* to, int64_t n, int64_t rows,
                        bool log) {
  const T *y = static_cast<const T*>(from_y), *dy = static_cast<const T*>(from_dy);
  T* dx = static_cast<T*>(to);
  if constexpr (std::is_same_v<T, double>) {
    for (int64_t r = 0; r < rows; ++r)
      slopes_of_lanes(y + r * n, dy + r * n, dx + r * n, n, 1, log, All{});
  } else {
    double totals[Vec::lanes] = {};
    float numbers[Vec::lanes];
    constexpr int64_t ahead = 8 * Vec::lanes;
    for_vectors<T>(n, [&](int64_t i, auto count) {
      Vec terms[Vec::lanes];
      for (int64_t r = 0; r < Vec::lanes; ++r) {
        const int64_t at = (r < rows ? r : 0) * n + i;
        if (i + ahead < n) {
          __builtin_prefetch(dy + at + ahead);
          if (!log) __builtin_prefetch(y + at + ahead);
        }
        const Vec slope = load(dy + at, count);
        terms[r] = log ? slope : slope * load(y + at, count);
      }
      transpose(terms);
      for (const Vec& term : terms) {  // 0 beyond the end of the rows
        store(numbers, term);
        for (int64_t r = 0; r < Vec::lanes; ++r) totals[r] += static_cast<double>(numbers[r]);
      }
    });
    for (int64_t r = 0; r < rows; ++r, y += n, dy += n, dx += n) {
      const Vec sum = static_cast<double>(static_cast<float>(totals[r]));
      for_vectors<T>(n, [&](int64_t i, auto count) {
        store(dx + i, softmax_slope<T>(load(y + i, count), load(dy + i, count), sum, log), count);
      });
    }
  }
}

template <class T>
void softmax_slopes(const void* y, const void* dy, void* dx, int64_t n, int64_t step,
                    int64_t columns, bool log) {
  for_vectors<T>(columns, [&](int64_t k, auto count) {
    slopes_of_lanes(static_cast<const T*>(y) + k, static_cast<const T*>(dy) + k,
                    static_cast<T*>(dx) + k, n, step, log, count);
  });
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
    .softmax_columns = {softmax_columns<double>, softmax_columns<float>, softmax_columns<bf16>,
                        softmax_columns<f16>},
    .softmax_slopes = {softmax_slopes<double>, softmax_slopes<float>, softmax_slopes<bf16>,
                       softmax_slopes<f16>},
    .softmax_row_slopes = {softmax_row_slopes<double>, softmax_row_slopes<float>,
                           softmax_row_slopes<bf16>, softmax_row_slopes<f16>},
};
}  // namespace ZG_ISA
}  // namespace zg::cpu

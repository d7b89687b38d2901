#include "zerograd/kernels/cpu/rows_table.h"
#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu {
namespace {

template <class T>
double row_max(const void* row, int64_t n) {
  const T* x = static_cast<const T*>(row);
  // max() returns its second operand if one is NaN.
  const auto larger = [](auto a, auto b) { return select(b <= b, max(b, a), b); };
  const VecOf<T> best = combine<T, 4>(
      n, -__builtin_inf(), [&](int64_t i, auto count) { return load(x + i, count); }, larger);
  if constexpr (std::is_same_v<T, double>)
    return best;
  else
    return reduce(best, [](auto a, auto b) { return (a > b) | (a != a) ? a : b; });
}

constexpr int lane_of(int row) {
  int lane = 0;
  for (int from = 1, to = part_lanes / 2; to > 0; from *= 2, to /= 2) lane += row & from ? to : 0;
  return lane;
}
/// Combines neighbours among 2 * part_lanes / distance registers.
template <int distance, class F>
void combine_neighbours(Part* p, const F& f) {
  constexpr auto lanes = std::make_index_sequence<part_lanes>();
#pragma GCC unroll 8
  for (int i = 0; i < parts * distance; ++i)
    p[i] = f(even_blocks<distance>(p[2 * i], p[2 * i + 1], lanes),
             odd_blocks<distance>(p[2 * i], p[2 * i + 1], lanes));
  if constexpr (distance > 1) combine_neighbours<distance / 2>(p, f);
}
/// Lane r of the result is f of all lanes of rows[r], as the tree of reduce().
template <class F>
Vec reduce_rows(const Vec (&rows)[Vec::lanes], const F& f) {
  Part p[Vec::lanes];
#pragma GCC unroll 16
  for (int r = 0; r < Vec::lanes; ++r) {
    const auto& row = rows[r / part_lanes * part_lanes + lane_of(r % part_lanes)].part;
    if constexpr (parts == 1) p[r] = row[0];
    if constexpr (parts == 2) p[r] = f(row[0], row[1]);
    if constexpr (parts == 4) p[r] = f(f(row[0], row[2]), f(row[1], row[3]));
  }
  combine_neighbours<part_lanes / 2>(p, f);
  return each([&](int i) { return p[i]; });
}

template <class T>
void row_sums(const void* from, int64_t rows, int64_t step, int64_t n, double* totals) {
  constexpr int64_t block = 128;
  const T* x = static_cast<const T*>(from);
  for (int64_t r = 0; r < rows; ++r) totals[r] = 0;
  for (; n > 0; x += block, n -= block) {
    const int64_t size = n < block ? n : block;
    const auto sum_in_lanes = [&](const T* row) {
      Vec sum = 0.0;
      for_vectors(size, [&](int64_t i, auto count) { sum = sum + load(row + i, count); });
      return sum;
    };
    if (rows == 1) {
      totals[0] += static_cast<double>(reduce_add(sum_in_lanes(x)));
      continue;
    }
    Vec sums[Vec::lanes];
    float results[Vec::lanes];
    for (int64_t r = 0; r < rows; ++r) sums[r] = sum_in_lanes(x + r * step);
    for (int64_t r = rows; r < Vec::lanes; ++r) sums[r] = 0.0;
    store(results, reduce_rows(sums, [](auto a, auto b) { return a + b; }));
    for (int64_t r = 0; r < rows; ++r) totals[r] += static_cast<double>(results[r]);
  }
}

template <class T>
void row_maxima(const void* from, int64_t rows, int64_t step, int64_t n, float* totals) {
  const T* x = static_cast<const T*>(from);
  Vec best[Vec::lanes];
  for (int64_t r = 0; r < Vec::lanes; ++r) {
    best[r] = -__builtin_inf();
    if (r < rows)
      for_vectors(n, [&](int64_t i, auto count) {
        const Vec next = keep(load(x + r * step + i, count), count, best[r]);
        best[r] = select(next <= next, max(next, best[r]), next);
      });
  }
  const Vec all = reduce_rows(best, [](Part a, Part b) { return (a > b) | (a != a) ? a : b; });
  store(totals, all, rows);
}

/// Terms are summed in the accumulator type over blocks, the blocks in f64.
constexpr int64_t sum_block = 1024;
template <class T, class Term>
double sum_of_blocks(int64_t n, const Term& term) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += sum_block)
    total += sum_of<T, 2>(n - begin < sum_block ? n - begin : sum_block,
                          [&](int64_t i, auto count) { return term(begin + i, count); });
  return total;
}

template <class T>
double row_exp_sum(const void* row, double shift, int64_t n) {
  const T* x = static_cast<const T*>(row);
  const VecOf<T> s = shift;
  return sum_of_blocks<T>(n, [&](int64_t i, auto count) { return exp(load(x + i, count) - s); });
}

template <class T, int count>
void add_some_rows(const void* const* rows, accumulator_t<T>* sums, int64_t n) {
  for_vectors<T>(n, [&](int64_t i, auto lanes) {
    VecOf<T> sum = load(sums + i, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < count; ++r) sum = sum + load(static_cast<const T*>(rows[r]) + i, lanes);
    store(sums + i, sum, lanes);
  });
}
template <class T>
void add_rows(const void* const* rows, int64_t count, void* to, int64_t n) {
  auto* sums = static_cast<accumulator_t<T>*>(to);
  for (; count >= 8; count -= 8, rows += 8) add_some_rows<T, 8>(rows, sums, n);
  for (; count > 0; --count, ++rows) add_some_rows<T, 1>(rows, sums, n);
}

template <class X, class Y>
void row_scaled_exp(const void* from, double shift, double scale, void* to, int64_t n) {
  const X* x = static_cast<const X*>(from);
  Y* y = static_cast<Y*>(to);
  const VecOf<X> s = shift, factor = scale;
  for_vectors<X>(
      n, [&](int64_t i, auto count) { store(y + i, exp(load(x + i, count) - s) * factor, count); });
}

/// The sums of sum_of_blocks() in each lane, over the vectors term(0) to term(n - 1).
template <class T, class Term>
void sums_of_lanes(int64_t n, const Term& term, double* totals) {
  constexpr int64_t lanes = lanes_of<T>, width = 2 * lanes;
  accumulator_t<T> numbers[lanes];
  for (int64_t k = 0; k < lanes; ++k) totals[k] = 0;
  for (int64_t begin = 0; begin < n; begin += sum_block) {
    const int64_t size = n - begin < sum_block ? n - begin : sum_block;
    const int64_t whole = size / width * width;
    VecOf<T> sums[width];
    for (VecOf<T>& sum : sums) sum = 0.0;
    for (int64_t i = 0; i < size; ++i) {
      VecOf<T>& sum = sums[i < whole ? i % width : (i - whole) % lanes];
      sum = sum + term(begin + i);
    }
    for (int64_t distance = lanes; distance > 0; distance /= 2)
      for (int64_t i = 0; i < distance; ++i) sums[i] = sums[i] + sums[i + distance];
    store(numbers, sums[0]);
    for (int64_t k = 0; k < lanes; ++k) totals[k] += static_cast<double>(numbers[k]);
  }
}

template <class T>
void softmax_of_row(const T* x, T* y, int64_t n, bool log) {
  const VecOf<T> best = row_max<T>(x, n);
  const auto term = [&](int64_t i, auto count) { return exp(load(x + i, count) - best); };
  if (log) {
    const VecOf<T> log_sum = portable::log(sum_of_blocks<T>(n, term));
    return for_vectors<T>(n, [&](int64_t i, auto count) {
      store(y + i, (load(x + i, count) - best) - log_sum, count);
    });
  }
  constexpr bool is_exact = std::is_same_v<T, accumulator_t<T>>;  // y holds the exponentials
  const VecOf<T> factor = 1 / sum_of_blocks<T>(n, [&](int64_t i, auto count) {
                            const VecOf<T> value = term(i, count);
                            if (is_exact) store(y + i, value, count);
                            return value;
                          });
  for_vectors<T>(n, [&](int64_t i, auto count) {
    store(y + i, (is_exact ? load(y + i, count) : term(i, count)) * factor, count);
  });
}

/// softmax of as many columns as a vector has lanes, or the first `count`.
template <class T, class Count>
void softmax_of_lanes(const T* x, T* y, int64_t n, int64_t step, bool log, Count count) {
  constexpr int64_t lanes = lanes_of<T>;
  VecOf<T> best = -__builtin_inf();
  for (int64_t i = 0; i < n; ++i) best = max(load(x + i * step, count), best);
  double totals[lanes];
  sums_of_lanes<T>(
      n, [&](int64_t i) { return exp(load(x + i * step, count) - best); }, totals);
  accumulator_t<T> numbers[lanes];
  for (int64_t k = 0; k < lanes; ++k)
    numbers[k] = static_cast<accumulator_t<T>>(log ? portable::log(totals[k]) : 1 / totals[k]);
  const VecOf<T> number = load(numbers);
  for (int64_t i = 0; i < n; ++i) {
    const VecOf<T> shifted = load(x + i * step, count) - best;
    store(y + i * step, log ? shifted - number : exp(shifted) * number, count);
  }
}

template <class T>
void softmax(const void* from, void* to, int64_t n, int64_t step, int64_t columns, bool log) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  if (step == 1) return softmax_of_row(x, y, n, log);
  for_vectors<T>(
      columns, [&](int64_t k, auto count) { softmax_of_lanes(x + k, y + k, n, step, log, count); });
}

/// The term of the sum that softmax_slope() needs.
template <class V>
V slope_term(V value, V slope, bool log) {
  return log ? slope : slope * value;
}
/// slope - exp(value) * sum for log_softmax, value * (slope - sum) for softmax.
template <class V>
V softmax_slope(V value, V slope, V sum, bool log) {
  return log ? slope - exp(value) * sum : value * (slope - sum);
}

/// softmax_slopes of as many columns as a vector has lanes, or the first `count`.
template <class T, class Count>
void slopes_of_lanes(const T* y, const T* dy, T* dx, int64_t n, int64_t step, bool log,
                     Count count) {
  constexpr int64_t lanes = lanes_of<T>;
  double totals[lanes];
  sums_of_lanes<T>(
      n,
      [&](int64_t i) {
        return slope_term(load(y + i * step, count), load(dy + i * step, count), log);
      },
      totals);
  accumulator_t<T> numbers[lanes];
  for (int64_t k = 0; k < lanes; ++k) numbers[k] = static_cast<accumulator_t<T>>(totals[k]);
  const VecOf<T> sums = load(numbers);
  for (int64_t i = 0; i < n; ++i) {
    const VecOf<T> value = load(y + i * step, count), slope = load(dy + i * step, count);
    store(dx + i * step, softmax_slope(value, slope, sums, log), count);
  }
}

template <class T>
void softmax_slopes(const void* from_y, const void* from_dy, void* to, int64_t n, int64_t step,
                    int64_t columns, bool log) {
  const T *y = static_cast<const T*>(from_y), *dy = static_cast<const T*>(from_dy);
  T* dx = static_cast<T*>(to);
  if (step > 1)
    return for_vectors<T>(columns, [&](int64_t k, auto count) {
      slopes_of_lanes(y + k, dy + k, dx + k, n, step, log, count);
    });
  const VecOf<T> sum = sum_of_blocks<T>(n, [&](int64_t i, auto count) {
    return slope_term(load(y + i, count), load(dy + i, count), log);
  });
  for_vectors<T>(n, [&](int64_t i, auto count) {
    store(dx + i, softmax_slope(load(y + i, count), load(dy + i, count), sum, log), count);
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
    .add_rows = {add_rows<double>, add_rows<float>, add_rows<bf16>, add_rows<f16>},
    .sums = {row_sums<float>, row_sums<bf16>, row_sums<f16>},
    .maxima = {row_maxima<float>, row_maxima<bf16>, row_maxima<f16>},
    .softmax = {softmax<double>, softmax<float>, softmax<bf16>, softmax<f16>},
    .softmax_slopes = {softmax_slopes<double>, softmax_slopes<float>, softmax_slopes<bf16>,
                       softmax_slopes<f16>},
};
}  // namespace ZG_ISA
}  // namespace zg::cpu

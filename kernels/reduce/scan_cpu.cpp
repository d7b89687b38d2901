#include <algorithm>
#include <limits>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/movement/indexed.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {
namespace {

constexpr int64_t column_block = 256, task_elements = 1 << 14;

/// Sums of floating types are accumulated in f64, of integers in 64 bits with wraparound.
template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;

template <class T>
T stored(Sum<T> sum) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(sum);
  else
    return static_cast<T>(static_cast<accumulator_t<T>>(sum));
}

/// A row of neighbours, four at a time, so that an addition waits for that of four elements before.
template <class T>
void sum_row(const T* x, T* y, int64_t extent, int64_t step) {
  Sum<T> before = 0;
  int64_t i = 0;
  for (; i + 4 <= extent; i += 4, x += 4 * step, y += 4 * step) {
    const auto a = static_cast<Sum<T>>(x[0]), b = static_cast<Sum<T>>(x[step]),
               c = static_cast<Sum<T>>(x[2 * step]), d = static_cast<Sum<T>>(x[3 * step]);
    const Sum<T> two = a + b;
    y[0] = stored<T>(before + a);
    y[step] = stored<T>(before + two);
    y[2 * step] = stored<T>(before + (two + c));
    before += two + (c + d);
    y[3 * step] = stored<T>(before);
  }
  for (; i < extent; ++i, x += step, y += step) y[0] = stored<T>(before += static_cast<Sum<T>>(*x));
}

template <class T>
void sum_columns(const T* x, T* y, int64_t extent, int64_t step, int64_t columns) {
  if (columns == 1) return sum_row(x, y, extent, step);
  Sum<T> sums[column_block] = {};
  for (int64_t i = 0; i < extent; ++i, x += step, y += step)
    for (int64_t k = 0; k < columns; ++k) y[k] = stored<T>(sums[k] += static_cast<Sum<T>>(x[k]));
}

/// A row of neighbours: the next element that replaces the largest so far is searched for, a block
/// at a time, and those before it are filled.
template <class T>
void place_row(const Scan& args, int64_t begin, int64_t extent, int64_t step) {
  using A = arithmetic_t<T>;
  constexpr int64_t block = 16;
  const T* x = args.x.data<T>() + begin;
  for (int64_t i = 0, end; i < extent; i = end) {
    const auto best = static_cast<A>(x[i * step]);
    const auto may_replace = [&](const T* some) {
      int found = 0;
      for (int64_t k = 0; k < block; ++k) found |= !(static_cast<A>(some[k]) < best);
      return found != 0;
    };
    const auto replaces = [&](A value) { return value >= best || value != value; };
    end = i + 1;
    while (end + block <= extent && !may_replace(x + (step > 0 ? end : 1 - end - block)))
      end += block;
    while (end < extent && !replaces(static_cast<A>(x[end * step]))) ++end;
    const int64_t first = begin + (step > 0 ? i : 1 - end);
    std::fill_n(args.values.data<T>() + first, end - i, x[i * step]);
    std::fill_n(args.y.data<int64_t>() + first, end - i, args.reversed ? extent - 1 - i : i);
  }
}

/// The largest elements so far and their places, of neighbouring rows.
template <class T>
void place_columns(const Scan& args, int64_t begin, int64_t extent, int64_t step, int64_t columns) {
  using A = arithmetic_t<T>;
  const T* x = args.x.data<T>() + begin;
  T* values = args.values.data<T>() + begin;
  int64_t* y = args.y.data<int64_t>() + begin;
  A best[column_block];
  int64_t places[column_block] = {};
  std::fill_n(best, column_block,
              std::is_integral_v<T> ? std::numeric_limits<A>::lowest()
                                    : -std::numeric_limits<A>::infinity());
  for (int64_t i = 0; i < extent; ++i, x += step, y += step, values += step) {
    const int64_t place = args.reversed ? extent - 1 - i : i;
    for (int64_t k = 0; k < columns; ++k) {
      const A value = static_cast<A>(x[k]);
      const bool replaces = value >= best[k] || value != value;
      best[k] = replaces ? value : best[k];
      y[k] = places[k] = replaces ? place : places[k];
      values[k] = static_cast<T>(best[k]);
    }
  }
}

}  // namespace

void scan(const Scan& args, Workspace, Stream& stream) {
  if (args.y.numel() == 0) return;
  const Indexed at = Indexed::split(args.x.shape(), args.axis);
  const int64_t blocks = (at.inner + column_block - 1) / column_block;
  const int64_t grain =
      std::max<int64_t>(task_elements / (at.extent * std::min(at.inner, column_block)), 1);
  const int64_t first = args.reversed ? at.extent - 1 : 0;
  const int64_t step = args.reversed ? -at.inner : at.inner;
  const auto for_columns = [&](const auto& f) {  // f(offset of the first element, columns)
    parallel_for(stream.traits().threads, at.outer * blocks, grain, [&](int64_t from, int64_t to) {
      for (int64_t task = from; task < to; ++task) {
        const int64_t column = task % blocks * column_block;
        f((task / blocks * at.extent + first) * at.inner + column,
          std::min(column_block, at.inner - column));
      }
    });
  };
  if (args.finds_places())
    return visit_number(args.x.dtype(), [&]<class T>() {
      for_columns([&](int64_t begin, int64_t columns) {
        if (at.inner == 1) return place_row<T>(args, begin, at.extent, step);
        place_columns<T>(args, begin, at.extent, step, columns);
      });
    });
  visit_number(args.x.dtype(), [&]<class T>() {
    for_columns([&](int64_t begin, int64_t columns) {
      sum_columns(args.x.data<T>() + begin, args.y.data<T>() + begin, at.extent, step, columns);
    });
  });
}

}  // namespace zg::cpu

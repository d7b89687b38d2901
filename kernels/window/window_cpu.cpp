#include <algorithm>
#include <limits>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/window/window.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {
namespace {

/// Columns of a row whose sums are kept in the L1 cache at a time.
constexpr int64_t tile = 512;

int64_t ceil_quotient(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

/// The row (column) of x for place u of row (column) i of y; -1: none.
int64_t source(const WindowAxis& axis, bool transposed, int64_t i, int64_t u, int64_t extent) {
  int64_t at = i * axis.stride + u * axis.dilation - axis.before;
  if (transposed) {
    at = i + axis.before - u * axis.dilation;
    at = at % axis.stride == 0 ? at / axis.stride : -1;
  }
  return at < extent ? at : -1;
}

/// f(j - begin, column of x) for the columns j of [begin, end) whose place v is in x.
template <class F>
void for_columns_with(const WindowAxis& axis, int64_t v, int64_t x_columns, int64_t begin,
                      int64_t end, const F& f) {
  const int64_t shift = v * axis.dilation - axis.before, stride = axis.stride;
  const int64_t first = std::max(ceil_quotient(-shift, stride), begin);
  const int64_t last = std::min(ceil_quotient(x_columns - shift, stride), end);
  for (int64_t j = first; stride == 1 && j < last; ++j) f(j - begin, j + shift);
  for (int64_t j = first; stride != 1 && j < last; ++j) f(j - begin, j * stride + shift);
}

/// sums[j - begin] += weight * x[...] for the columns j of [begin, end) that have place v in x.
template <class T, class A>
void add_place(const WindowAxis& axis, bool transposed, int64_t v, A weight, const T* x,
               int64_t x_columns, int64_t begin, int64_t end, A* sums) {
  const int64_t shift = v * axis.dilation - axis.before, stride = axis.stride;
  if (transposed) {  // column k of x is added to k * stride + shift
    const int64_t first = std::max<int64_t>(ceil_quotient(begin - shift, stride), 0);
    const int64_t last = std::min(ceil_quotient(end - shift, stride), x_columns);
    for (int64_t k = first; stride == 1 && k < last; ++k)
      sums[k + shift - begin] += weight * static_cast<A>(x[k]);
    for (int64_t k = first; stride != 1 && k < last; ++k)
      sums[k * stride + shift - begin] += weight * static_cast<A>(x[k]);
    return;
  }
  for_columns_with(axis, v, x_columns, begin, end,
                   [&](int64_t j, int64_t from) { sums[j] += weight * static_cast<A>(x[from]); });
}

/// sums[j - begin] += x[k] for the elements k of a row whose place is (u, v) and lies at column j
/// of [begin, end); falling k is rising v.
template <class T, class A>
void add_chosen(const WindowAxis& axis, int64_t u, const int32_t* places, const T* x,
                int64_t x_columns, int64_t begin, int64_t end, A* sums) {
  const int64_t reach = (axis.size - 1) * axis.dilation, shift = begin + axis.before;
  const int64_t first = std::max<int64_t>(ceil_quotient(shift - reach, axis.stride), 0);
  const int64_t last = std::min(ceil_quotient(end + axis.before, axis.stride), x_columns);
  for (int64_t k = last; k-- > first;) {
    const int64_t v = places[k] - u * axis.size, j = k * axis.stride + v * axis.dilation - shift;
    if (v >= 0 && v < axis.size && j >= 0 && j < end - begin) sums[j] += static_cast<A>(x[k]);
  }
}

template <class T>
void reduce_row(const WindowReduce& a, const Planes& n, int64_t row) {
  using A = accumulator_t<T>;
  const auto& [rows, columns] = a.window;
  const int64_t i = row % n.y_rows, plane = row / n.y_rows, channel = plane % n.channels;
  const int64_t offset = plane / n.channels * n.sample + channel * n.channel;
  const T* x = a.x.data<T>() + offset;
  const T* weight = a.weight ? a.weight.data<T>() + channel * rows.size * columns.size : nullptr;
  const A start = a.largest ? -std::numeric_limits<A>::infinity()
                  : a.bias  ? static_cast<A>(a.bias.data<T>()[channel])
                            : A{0};
  T* y = a.y.data<T>() + row * n.y_columns;
  for (int64_t begin = 0; begin < n.y_columns; begin += tile) {
    const int64_t end = std::min(begin + tile, n.y_columns);
    A sums[tile];
    int32_t places[tile];
    std::fill_n(sums, end - begin, start);
    if (a.largest) std::fill_n(places, end - begin, 0);
    for (int64_t p = 0; p < rows.size; ++p) {
      // The first of equal elements is the last to replace another.
      const int64_t u = a.largest ? rows.size - 1 - p : p;
      const int64_t from = source(rows, a.transposed, i, u, n.x_rows), line = from * n.x_columns;
      if (from < 0) continue;
      if (a.transposed && a.places) {
        add_chosen(columns, u, a.places.data<int32_t>() + offset + line, x + line, n.x_columns,
                   begin, end, sums);
        continue;
      }
      for (int64_t q = 0; q < columns.size; ++q) {
        const int64_t v = a.largest ? columns.size - 1 - q : q, place = u * columns.size + v;
        const T* of_place = x + place * n.place + line;
        if (!a.largest)
          add_place(columns, a.transposed, v, weight ? static_cast<A>(weight[place]) : A{1},
                    of_place, n.x_columns, begin, end, sums);
        else
          for_columns_with(columns, v, n.x_columns, begin, end, [&](int64_t j, int64_t at) {
            const A value = static_cast<A>(of_place[at]);
            const bool replaces = value >= sums[j] || value != value;
            sums[j] = replaces ? value : sums[j];
            places[j] = replaces ? static_cast<int32_t>(place) : places[j];
          });
      }
    }
    for (int64_t j = begin; j < end; ++j)
      y[j] = static_cast<T>(sums[j - begin] / static_cast<A>(a.divisor));
    if (a.largest)
      std::copy_n(places, end - begin, a.places.data<int32_t>() + row * n.y_columns + begin);
  }
}

}  // namespace

void window_reduce(const WindowReduce& a, Workspace, Stream& stream) {
  const Planes n(a);
  constexpr int64_t grain = 1 << 15;  // multiply-adds of one task
  const int64_t in_a_row = std::max<int64_t>(n.y_columns, 1) * a.window[0].size * a.window[1].size;
  if (a.y.numel() == 0) return;
  visit_floating(a.y.dtype(), [&]<class T>() {
    parallel_for(stream.traits().threads, a.y.numel() / n.y_columns,
                 std::max<int64_t>(grain / in_a_row, 1), [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) reduce_row<T>(a, n, row);
                 });
  });
}

}  // namespace zg::cpu

#include "zerograd/kernels/reduce/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/rows.h"
#include "zerograd/kernels/movement/indexed.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/portable_math.h"

namespace zg::cpu {
namespace {

// The fewest elements that a task reads, and the length of the chunks of a long reduction. The
// chunks depend only on the shape, so partial results are the same for any number of threads.
constexpr int64_t task_elements = 1 << 14, chunk_elements = 1 << 16;
// Columns of one task: their f32 and f64 sums stay in the L1 cache, and the pieces of rows are long
// enough to be prefetched.
constexpr int64_t column_block = 1024;

/// Some axes of x, outermost first, and the offsets of their elements by one flat index.
struct Axes {
  int64_t extents[Shape::max_rank], strides[Shape::max_rank];
  int rank = 0;

  void push(int64_t extent, int64_t stride) {
    extents[rank] = extent;
    strides[rank++] = stride;
  }
  int64_t numel() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= extents[i];
    return count;
  }
  int64_t offset(int64_t index) const {
    int64_t offset = 0;
    for (int i = rank - 1; i > 0; --i) {
      offset += index % extents[i] * strides[i];
      index /= extents[i];
    }
    return rank > 0 ? offset + index * strides[0] : 0;
  }
};

/// How a reduction is divided. x consists of runs of `inner` neighbouring elements. Either the
/// innermost axis is reduced and a run gives one result (rows), or it is kept and runs are combined
/// element by element (columns). Axes of extent 1 are dropped and neighbouring axes of one kind
/// merged first.
struct Plan {
  Axes kept, reduced;  ///< without the inner axis
  int64_t inner = 1;
  bool columns = false;
  int64_t outputs = 0, runs = 0;  ///< extents of kept and reduced
  int64_t chunk_runs = 1;         ///< columns: runs in a chunk
  int64_t chunks = 1;             ///< chunks per output

  explicit Plan(const Reduce& args) {
    const Shape& shape = args.x.shape();
    const uint32_t axes = args.axes;
    int64_t extents[Shape::max_rank], strides[Shape::max_rank], stride = shape.numel();
    bool reduces[Shape::max_rank];
    int rank = 0;
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] == 1) continue;
      if (shape[i] > 0) stride /= shape[i];
      const bool reduce = axes >> i & 1u;
      const bool merges = rank > 0 && reduces[rank - 1] == reduce;
      const int64_t before = merges ? extents[--rank] : 1;
      extents[rank] = before * shape[i];
      strides[rank] = stride;
      reduces[rank++] = reduce;
    }
    for (int i = 0; i + 1 < rank; ++i) (reduces[i] ? reduced : kept).push(extents[i], strides[i]);
    if (rank > 0) inner = extents[rank - 1];
    columns = rank > 0 && !reduces[rank - 1];
    outputs = kept.numel();
    runs = reduced.numel();
    if (columns) {
      chunk_runs = std::max<int64_t>(
          chunk_elements / std::max<int64_t>(args.columns ? args.columns : inner, 1), 32);
      chunks = std::max<int64_t>((runs + chunk_runs - 1) / chunk_runs, 1);
    } else {
      chunks = std::max<int64_t>((runs * inner + chunk_elements - 1) / chunk_elements, 1);
    }
  }

  int64_t reduced_elements() const { return columns ? runs : runs * inner; }
  int64_t width() const {
    return columns ? inner : 1;
  }  ///< results for one index of the kept outer axes
  int64_t partials() const { return chunks > 1 ? outputs * chunks * width() : 0; }
};

/// Adds elements in the accumulator type over short blocks, and the blocks in f64, so that the
/// error stays small.
template <class T>
struct Sum {
  using Total = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
  using Block = std::conditional_t<std::is_integral_v<T>, uint64_t, accumulator_t<T>>;
  static constexpr Total start = 0;
  static constexpr int block_rows = 32;
  static constexpr Block block_start = 0;
  static Total merged(Total a, Total b) { return a + b; }
  static void add(Block& sum, T x) { sum += static_cast<Block>(x); }

  static constexpr int64_t long_row = 1024;  ///< up to this extent 16 rows are side by side
  /// As of_run, of up to 16 rows: RowTable::sums.
  static void of_rows(const RowTable& table, const T* x, int64_t rows, int64_t step, int64_t n,
                      Total* totals) {
    table.sums[type_index<T> - 1](x, rows, step, n, totals);
  }
  static Total of_run([[maybe_unused]] const RowTable& table, const T* x, int64_t n) {
    if constexpr (std::is_same_v<Block, float>) {
      Total total;
      of_rows(table, x, 1, 0, n, &total);
      return total;
    }
    constexpr int lanes = 16, block = 128;
    Total total = 0;
    for (; n > 0; x += block, n -= block) {
      Block sums[lanes] = {};
      if (n >= block)
        for (int i = 0; i < block; i += lanes)
          for (int lane = 0; lane < lanes; ++lane) sums[lane] += static_cast<Block>(x[i + lane]);
      else
        for (int64_t i = 0; i < n; ++i) sums[i % lanes] += static_cast<Block>(x[i]);
      for (int width = lanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
      total += static_cast<Total>(sums[0]);
    }
    return total;
  }
};

template <class T>
struct Max {
  using Total = arithmetic_t<T>;
  using Block = Total;
  static constexpr Total start = std::is_integral_v<T> ? std::numeric_limits<Total>::lowest()
                                                       : -std::numeric_limits<Total>::infinity();
  static constexpr Total block_start = start;
  static constexpr int block_rows = 32;
  /// NaN is larger than every number.
  static Total merged(Total a, Total b) { return b > a || b != b ? b : a; }
  static void add(Block& best, T x) { best = merged(best, static_cast<Total>(x)); }
  static constexpr int64_t long_row = 128;
  static void of_rows(const RowTable& table, const T* x, int64_t rows, int64_t step, int64_t n,
                      Total* totals) {
    table.maxima[type_index<T> - 1](x, rows, step, n, totals);
  }
  static Total of_run([[maybe_unused]] const RowTable& table, const T* x, int64_t n) {
    if constexpr (std::is_same_v<Total, float>) return row_max(table, x, n);
    // NaN is searched for separately, so the maximum is one instruction for each vector.
    typedef Total Part __attribute__((vector_size(16)));
    constexpr int64_t parts = 4, width = 16 / sizeof(Total);
    Part best[parts];
    std::fill(best, best + parts, Part{} + start);
    decltype(best[0] != best[0]) unordered[parts] = {};
    int64_t i = 0;
    for (; i + parts * width <= n; i += parts * width)
      for (int64_t part = 0; part < parts; ++part) {
        Part value;
        for (int64_t lane = 0; lane < width; ++lane)
          value[lane] = static_cast<Total>(x[i + part * width + lane]);
        best[part] = value > best[part] ? value : best[part];
        unordered[part] |= value != value;
      }
    Total result = start;
    for (int64_t lane = 0; lane < parts * width; ++lane) {
      const int64_t part = lane / width, at = lane % width;
      result = merged(
          result, unordered[part][at] ? std::numeric_limits<Total>::quiet_NaN() : best[part][at]);
    }
    for (; i < n; ++i) add(result, x[i]);
    return result;
  }
};

template <class Op, class T>
typename Op::Total of_row_chunk(const Plan& plan, const RowTable& table, const T* x, int64_t begin,
                                int64_t end) {
  typename Op::Total total = Op::start;
  while (begin < end) {
    const int64_t run = begin / plan.inner, from = begin % plan.inner;
    const int64_t count = std::min(plan.inner - from, end - begin);
    total = Op::merged(total, Op::of_run(table, x + plan.reduced.offset(run) + from, count));
    begin += count;
  }
  return total;
}

/// Runs [begin, end) of up to column_block columns.
template <class Op, class T>
void of_column_chunk(const Plan& plan, const RowTable& table, const T* x, int64_t begin,
                     int64_t end, int64_t columns, typename Op::Total* totals) {
  std::fill(totals, totals + columns, Op::start);
  typename Op::Block block[column_block];
  for (int64_t run = begin; run < end; run += Op::block_rows) {
    std::fill(block, block + columns, Op::block_start);
    const int64_t last = std::min(run + Op::block_rows, end);
    if constexpr (std::is_same_v<Op, Sum<T>> && !std::is_integral_v<T>) {
      const T* rows[Op::block_rows];
      for (int64_t r = run; r < last; ++r) rows[r - run] = x + plan.reduced.offset(r);
      add_rows(table, rows, last - run, block, columns);
    } else {
      for (int64_t r = run; r < last; ++r) {
        const T* row = x + plan.reduced.offset(r);
        for (int64_t k = 0; k < columns; ++k) Op::add(block[k], row[k]);
      }
    }
    for (int64_t k = 0; k < columns; ++k)
      totals[k] = Op::merged(totals[k], static_cast<typename Op::Total>(block[k]));
  }
}

/// Calls put(output, chunk, first column, count, totals) for each part of each result.
template <class Op, class T, class Put>
void for_each_part(const Plan& plan, const T* x, const Device::Traits& traits, const Put& put) {
  using Total = typename Op::Total;
  const int threads = traits.threads;
  const RowTable& table = ZG_AT_LEVEL(traits.isa, row_table);
  if (!plan.columns) {
    const int64_t elements = plan.reduced_elements();
    const int64_t each = std::clamp<int64_t>(elements, 1, chunk_elements);
    const int64_t grain = std::max<int64_t>(task_elements / each, 1);
    if constexpr (std::is_same_v<typename Op::Block, float>)
      if (plan.reduced.rank == 0 && plan.kept.rank == 1 && plan.chunks == 1 &&
          elements <= Op::long_row)
        return parallel_for(threads, plan.outputs, grain, [&](int64_t first, int64_t last) {
          constexpr int64_t rows = 16;
          Total totals[rows];
          for (int64_t output = first; output < last; output += rows) {
            const int64_t count = std::min(rows, last - output), step = plan.kept.strides[0];
            Op::of_rows(table, x + output * step, count, step, elements, totals);
            put(output, int64_t{0}, int64_t{0}, count, totals);
          }
        });
    parallel_for(threads, plan.outputs * plan.chunks, grain, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        const int64_t output = part / plan.chunks, chunk = part % plan.chunks;
        const int64_t begin = chunk * chunk_elements;
        const Total total = of_row_chunk<Op>(plan, table, x + plan.kept.offset(output), begin,
                                             std::min(begin + chunk_elements, elements));
        put(output, chunk, 0, 1, &total);
      }
    });
    return;
  }
  const int64_t blocks = (plan.inner + column_block - 1) / column_block;
  const int64_t each = std::clamp<int64_t>(plan.runs, 1, plan.chunk_runs) *
                       std::clamp<int64_t>(plan.inner, 1, column_block);
  const int64_t grain = std::max<int64_t>(task_elements / each, 1);
  const int64_t parts = plan.outputs * plan.chunks * blocks;
  parallel_for(threads, parts, grain, [&](int64_t first, int64_t last) {
    Total totals[column_block];
    for (int64_t part = first; part < last; ++part) {
      const int64_t column = part % blocks * column_block;
      const int64_t chunk = part / blocks % plan.chunks, output = part / blocks / plan.chunks;
      const int64_t columns = std::min(column_block, plan.inner - column);
      const int64_t begin = chunk * plan.chunk_runs;
      of_column_chunk<Op>(plan, table, x + plan.kept.offset(output) + column, begin,
                          std::min(begin + plan.chunk_runs, plan.runs), columns, totals);
      put(output, chunk, column, columns, totals);
    }
  });
}

template <class Op, class T, class Y>
void run(const Reduce& args, Workspace workspace, const Device::Traits& traits) {
  using Total = typename Op::Total;
  const Plan plan(args);
  const int threads = traits.threads;
  const T* x = args.x.data<T>();
  Y* y = args.y.data<Y>();
  const auto elements = static_cast<double>(plan.reduced_elements());
  auto store = [&](int64_t at, Total total) {
    if constexpr (std::is_integral_v<T>)
      y[at] = static_cast<Y>(total);
    else
      y[at] = static_cast<Y>(
          static_cast<accumulator_t<Y>>(args.op == ReduceOp::mean ? total / elements : total));
  };
  if (plan.chunks == 1)
    return for_each_part<Op>(
        plan, x, traits,
        [&](int64_t output, int64_t, int64_t column, int64_t count, const Total* totals) {
          for (int64_t k = 0; k < count; ++k) store(output * plan.width() + column + k, totals[k]);
        });
  Total* partials = reinterpret_cast<Total*>(workspace.data);
  for_each_part<Op>(
      plan, x, traits,
      [&](int64_t output, int64_t chunk, int64_t column, int64_t count, const Total* totals) {
        std::copy(totals, totals + count,
                  partials + (output * plan.chunks + chunk) * plan.width() + column);
      });
  parallel_for(threads, plan.outputs * plan.width(), task_elements, [&](int64_t from, int64_t to) {
    for (int64_t at = from; at < to; ++at) {
      const int64_t output = at / plan.width(), column = at % plan.width();
      Total total = Op::start;
      for (int64_t chunk = 0; chunk < plan.chunks; ++chunk)
        total = Op::merged(total, partials[(output * plan.chunks + chunk) * plan.width() + column]);
      store(at, total);
    }
  });
}

}  // namespace

int64_t workspace_bytes(const Reduce& args, const Device::Traits&) {
  return Plan(args).partials() * static_cast<int64_t>(sizeof(double));
}

void reduce(const Reduce& args, Workspace workspace, Stream& stream) {
  visit_number(args.x.dtype(), [&]<class T>() {
    auto to = [&]<class Y>() {
      if (args.op == ReduceOp::max) return run<Max<T>, T, Y>(args, workspace, stream.traits());
      run<Sum<T>, T, Y>(args, workspace, stream.traits());
    };
    if (args.y.dtype() == args.x.dtype()) return to.template operator()<T>();
    to.template operator()<std::conditional_t<std::is_integral_v<T>, int64_t, accumulator_t<T>>>();
  });
}

namespace {

constexpr int64_t softmax_task_elements = 1 << 13, softmax_columns = 16;

/// f(offset, columns) for the first elements of up to softmax_columns neighbouring columns along an
/// axis, or of a row if the axis is the last; several short ones to a task.
template <class F>
void for_columns(const Indexed& at, Stream& stream, const F& f) {
  if (at.outer * at.extent * at.inner == 0) return;
  const int64_t blocks = (at.inner + softmax_columns - 1) / softmax_columns;
  const int64_t elements = at.extent * std::min(at.inner, softmax_columns);
  parallel_for(stream.traits().threads, at.outer * blocks,
               std::max<int64_t>(softmax_task_elements / elements, 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t column = task % blocks * softmax_columns;
                   f(task / blocks * at.extent * at.inner + column,
                     std::min(softmax_columns, at.inner - column));
                 }
               });
}

}  // namespace

void softmax_forward(const SoftmaxForward& args, Workspace, Stream& stream) {
  const Indexed at = Indexed::split(args.x.shape(), args.axis);
  const RowTable& table = ZG_AT_LEVEL(stream.traits().isa, row_table);
  visit_floating(args.x.dtype(), [&]<class T>() {
    for_columns(at, stream, [&](int64_t begin, int64_t columns) {
      table.softmax[type_index<T>](args.x.data<T>() + begin, args.y.data<T>() + begin, at.extent,
                                   at.inner, columns, args.log);
    });
  });
}

void softmax_backward(const SoftmaxBackward& args, Workspace, Stream& stream) {
  const Indexed at = Indexed::split(args.y.shape(), args.axis);
  const RowTable& table = ZG_AT_LEVEL(stream.traits().isa, row_table);
  visit_floating(args.y.dtype(), [&]<class T>() {
    for_columns(at, stream, [&](int64_t begin, int64_t columns) {
      table.softmax_slopes[type_index<T>](args.y.data<T>() + begin, args.dy.data<T>() + begin,
                                          args.dx.data<T>() + begin, at.extent, at.inner, columns,
                                          args.log);
    });
  });
}

}  // namespace zg::cpu

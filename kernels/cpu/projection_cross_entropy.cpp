#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/cross_entropy_rows.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/indices.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "runtime/cpu/team.h"

namespace zg::cpu {
namespace {

// A chunk of logits is up to this many columns, and with them elements: 16 MiB of f32, so that
// both its products are far from the memory's bandwidth while it is a small part of [N, V].
constexpr int64_t most_columns = 4096, chunk_elements = int64_t{1} << 22;

/// A chunk's place in [N, V].
struct Chunk {
  int64_t row, column, rows, columns;
};

/// The extents and how [N, V] is cut: by shape alone, so the bits are those of any thread count.
struct Tiling {
  int64_t N, V, C;
  int64_t rows, columns;  ///< of a whole chunk

  Tiling(const Tensor& x, const Tensor& weight)
      : N(x.extent(0)), V(weight.extent(0)), C(x.extent(1)) {
    constexpr int64_t step = 64;  // whole register tiles of the products
    const int64_t chunks = std::max<int64_t>((V + most_columns - 1) / most_columns, 1);
    const int64_t even = (V + chunks - 1) / chunks;
    columns = chunks == 1 ? V : std::min((even + step - 1) / step * step, V);
    const int64_t most_rows = chunk_elements / std::max<int64_t>(columns, 1);
    const int64_t blocks = std::max<int64_t>((N + most_rows - 1) / most_rows, 1);
    rows = (N + blocks - 1) / blocks;
  }
  Chunk at(int64_t row, int64_t column) const {
    return {row, column, std::min(rows, N - row), std::min(columns, V - column)};
  }
  bool one_chunk_wide() const { return columns >= V; }

  /// One chunk of each size that occurs.
  template <class F>
  void for_each_size(const F& f) const {
    if (N == 0 || V == 0) return;
    for (int64_t row : {int64_t{0}, (N - 1) / rows * rows})
      for (int64_t column : {int64_t{0}, (V - 1) / columns * columns}) f(at(row, column));
  }
};

/// Parts of a workspace, each on a 256-byte boundary.
struct Carver {
  int64_t bytes = 0;
  int64_t take(int64_t part) {
    const int64_t offset = bytes;
    bytes += part > 0 ? arena_bytes(part) : 0;
    return offset;
  }
};

Tensor view(const Workspace& workspace, int64_t offset, const Shape& shape, DType dtype) {
  return workspace.tensor->alias(workspace.tensor->byte_offset() + offset, shape, dtype);
}

Matmul logits_product(const Tensor& x, const Tensor& weight, const Tensor& logits,
                      const Chunk& chunk) {
  return {.a = x,
          .b = weight,
          .c = logits,
          .M = chunk.rows,
          .N = chunk.columns,
          .K = x.extent(1),
          .transpose_b = true};
}
Matmul dx_product(const Tensor& dlogits, const Tensor& weight, const Tensor& dx,
                  const Chunk& chunk) {
  return {.a = dlogits,
          .b = weight,
          .c = dx,
          .M = chunk.rows,
          .N = weight.extent(1),
          .K = chunk.columns,
          .accumulate = chunk.column > 0};
}
Matmul dweight_product(const Tensor& dlogits, const Tensor& x, const Tensor& dweight,
                       const Chunk& chunk) {
  return {.a = dlogits,
          .b = x,
          .c = dweight,
          .M = chunk.columns,
          .N = x.extent(1),
          .K = chunk.rows,
          .transpose_a = true,
          .accumulate = chunk.row > 0};
}

int64_t product_bytes(const Matmul& product, const Device::Traits& traits) {
  return kernels::matmul.workspace_bytes ? kernels::matmul.workspace_bytes(product, traits) : 0;
}
void multiply(const Matmul& product, const Workspace& workspace, int64_t offset, Stream& stream) {
  kernels::matmul.cpu(product, {workspace.data + offset, workspace.bytes - offset}, stream);
}

// Scratch of a product follows from its extents and dtypes; log_sum stands for tensors of the
// accumulator dtype and x for those of x's that do not exist yet.
struct ForwardPlan {
  Tiling tiling;
  int64_t logits, rows, product, bytes;

  ForwardPlan(const ProjectionCrossEntropyForward& args, const Device::Traits& traits)
      : tiling(args.x, args.weight) {
    Carver carver;
    logits = carver.take(tiling.rows * tiling.columns * size_of(args.log_sum.dtype()));
    rows = carver.take(tiling.rows * static_cast<int64_t>(sizeof(OnlineLogSumExp)));
    int64_t most = 0;
    tiling.for_each_size([&](const Chunk& chunk) {
      const Matmul m = logits_product(args.x, args.weight, args.log_sum, chunk);
      most = std::max(most, product_bytes(m, traits));
    });
    product = carver.take(most);
    bytes = carver.bytes;
  }
};

struct BackwardPlan {
  Tiling tiling;
  bool narrow;     ///< the gradient of the logits is rounded to x's dtype, for the products
  bool wide_sums;  ///< dx is summed over chunks in scratch, and rounded once
  int64_t logits, dlogits, dx, product, bytes;

  BackwardPlan(const ProjectionCrossEntropyBackward& args, const Device::Traits& traits)
      : tiling(args.x, args.weight),
        narrow(args.x.dtype() != args.log_sum.dtype()),
        wide_sums(narrow && args.dx && !tiling.one_chunk_wide()) {
    Carver carver;
    const int64_t elements = tiling.rows * tiling.columns;
    logits = carver.take(elements * size_of(args.log_sum.dtype()));
    dlogits = narrow ? carver.take(elements * size_of(args.x.dtype())) : logits;
    dx = carver.take(wide_sums ? tiling.rows * tiling.C * size_of(args.log_sum.dtype()) : 0);
    int64_t most = 0;
    auto count = [&](const Matmul& m) { most = std::max(most, product_bytes(m, traits)); };
    tiling.for_each_size([&](const Chunk& chunk) {
      count(logits_product(args.x, args.weight, args.log_sum, chunk));
      if (args.dx)
        count(dx_product(args.x, args.weight, wide_sums ? args.log_sum : args.dx, chunk));
      if (args.dweight) count(dweight_product(args.x, args.x, args.dweight, chunk));
    });
    product = carver.take(most);
    bytes = carver.bytes;
  }
};

template <class T>
void forward(const ProjectionCrossEntropyForward& args, Workspace workspace, Stream& stream) {
  using A = accumulator_t<T>;
  const ForwardPlan plan(args, stream.traits());
  const Tiling& tiling = plan.tiling;
  const int threads = stream.traits().threads;
  const RowTable* table = ZG_AT_LEVEL(stream.traits().isa, row_table);
  const Indices targets(args.targets);
  auto* rows = reinterpret_cast<OnlineLogSumExp*>(workspace.data + plan.rows);
  A *loss = args.loss.data<A>(), *log_sum = args.log_sum.data<A>();
  for (int64_t row = 0; row < tiling.N; row += tiling.rows) {
    const int64_t count = tiling.at(row, 0).rows;
    std::fill(rows, rows + count, OnlineLogSumExp{});
    for (int64_t column = 0; column < tiling.V; column += tiling.columns) {
      const Chunk chunk = tiling.at(row, column);
      const Tensor logits = view(workspace, plan.logits, {chunk.rows, chunk.columns}, dtype_of<A>);
      multiply(logits_product(args.x.slice(row, row + count),
                              args.weight.slice(column, column + chunk.columns), logits, chunk),
               workspace, plan.product, stream);
      const A* values = logits.data<A>();
      parallel_for(threads, count, rows_per_task(chunk.columns), [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n)
          rows[n].add(table, values + n * chunk.columns, chunk.columns, targets[row + n] - column);
      });
    }
    for (int64_t n = 0; n < count; ++n) {
      const double sum = rows[n].log_sum();
      const bool ignored = targets[row + n] == args.ignore_index;
      log_sum[row + n] = static_cast<A>(sum);
      loss[row + n] = ignored ? A{0} : static_cast<A>(sum - rows[n].target);
    }
  }
}

/// Of one chunk of logits, in [chunk.rows, chunk.columns] each.
template <class T>
void chunk_gradient(const ProjectionCrossEntropyBackward& args, const Chunk& chunk,
                    const accumulator_t<T>* logits, T* dlogits, Stream& stream) {
  using A = accumulator_t<T>;
  const RowTable* table = ZG_AT_LEVEL(stream.traits().isa, row_table);
  const Indices targets(args.targets);
  const A *log_sum = args.log_sum.data<A>() + chunk.row, *dloss = args.dloss.data<A>() + chunk.row;
  parallel_for(stream.traits().threads, chunk.rows, rows_per_task(chunk.columns),
               [&](int64_t begin, int64_t end) {
                 for (int64_t n = begin; n < end; ++n) {
                   const int64_t at = n * chunk.columns, target = targets[chunk.row + n];
                   if (target == args.ignore_index)
                     std::fill(dlogits + at, dlogits + at + chunk.columns, T{});
                   else
                     cross_entropy_gradient(table, logits + at, chunk.columns,
                                            target - chunk.column, log_sum[n], dloss[n],
                                            dlogits + at);
                 }
               });
}

template <class T>
void backward(const ProjectionCrossEntropyBackward& args, Workspace workspace, Stream& stream) {
  using A = accumulator_t<T>;
  const BackwardPlan plan(args, stream.traits());
  const Tiling& tiling = plan.tiling;
  if (tiling.V == 0 && args.dx) fill_zero(args.dx, stream);
  if (tiling.N == 0 && args.dweight) fill_zero(args.dweight, stream);
  for (int64_t row = 0; row < tiling.N; row += tiling.rows) {
    const int64_t count = tiling.at(row, 0).rows;
    const Tensor x = args.x.slice(row, row + count);
    const Tensor dx = args.dx ? args.dx.slice(row, row + count) : Tensor();
    const Tensor sums =
        plan.wide_sums ? view(workspace, plan.dx, {count, tiling.C}, dtype_of<A>) : dx;
    for (int64_t column = 0; column < tiling.V; column += tiling.columns) {
      const Chunk chunk = tiling.at(row, column);
      const Shape shape{chunk.rows, chunk.columns};
      const Tensor weight = args.weight.slice(column, column + chunk.columns);
      const Tensor logits = view(workspace, plan.logits, shape, dtype_of<A>);
      const Tensor dlogits = view(workspace, plan.dlogits, shape, dtype_of<T>);
      multiply(logits_product(x, weight, logits, chunk), workspace, plan.product, stream);
      chunk_gradient<T>(args, chunk, logits.data<A>(), dlogits.data<T>(), stream);
      if (args.dx)
        multiply(dx_product(dlogits, weight, sums, chunk), workspace, plan.product, stream);
      if (args.dweight)
        multiply(
            dweight_product(dlogits, x, args.dweight.slice(column, column + chunk.columns), chunk),
            workspace, plan.product, stream);
    }
    if (plan.wide_sums && tiling.V > 0) kernels::cast.cpu({.x = sums, .y = dx}, {}, stream);
  }
}

}  // namespace

int64_t projection_forward_workspace(const ProjectionCrossEntropyForward& args,
                                     const Device::Traits& traits) {
  return ForwardPlan(args, traits).bytes;
}

int64_t projection_backward_workspace(const ProjectionCrossEntropyBackward& args,
                                      const Device::Traits& traits) {
  return BackwardPlan(args, traits).bytes;
}

void projection_cross_entropy_forward(const ProjectionCrossEntropyForward& args,
                                      Workspace workspace, Stream& stream) {
  check_indices("projection_cross_entropy_forward", "targets", args.targets, args.weight.extent(0),
                args.ignore_index);
  visit_floating(args.x.dtype(), [&]<class T>() { forward<T>(args, workspace, stream); });
}

void projection_cross_entropy_backward(const ProjectionCrossEntropyBackward& args,
                                       Workspace workspace, Stream& stream) {
  check_indices("projection_cross_entropy_backward", "targets", args.targets, args.weight.extent(0),
                args.ignore_index);
  visit_floating(args.x.dtype(), [&]<class T>() { backward<T>(args, workspace, stream); });
}

}  // namespace zg::cpu

#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/cross_entropy_rows.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/indices.h"
#include "kernels/matmul.h"
#include "runtime/cpu/team.h"

namespace zg::cpu {
namespace {

// A chunk is up to this many columns: its part of the weight, which each product reads, is far from
// small, and a chunk of a block's rows stays in a cache from the product that makes it on.
constexpr int64_t most_columns = 4096;
// Logits that exist at a time: for a loss 16 MiB of f32, in a chunk of many rows. Gradients need
// the log-sum-exp of a row before they need its logits, so they keep all chunks of a block of rows,
// 40 MiB of f32: each block reads the weight twice and adds to all of its gradient once, so that
// fewer rows would wait for memory.
constexpr int64_t loss_elements = int64_t{4} << 20, gradient_elements = int64_t{10} << 20;

/// A chunk's place in [N, V].
struct Chunk {
  int64_t row, column, rows, columns;
};

/// The extents and how [N, V] is cut: by shape alone, so the bits are those of any thread count.
/// Columns are cut alike with and without gradients, for equal bits of the loss.
struct Tiling {
  int64_t N, V, C;
  int64_t rows, columns;  ///< of a whole block and of a whole chunk

  explicit Tiling(const ProjectionCrossEntropy& args)
      : N(args.x.extent(0)), V(args.weight.extent(0)), C(args.x.extent(1)) {
    constexpr int64_t step = 64;  // whole register tiles of the products
    const int64_t chunks = std::max<int64_t>((V + most_columns - 1) / most_columns, 1);
    const int64_t even = (V + chunks - 1) / chunks;
    columns = chunks == 1 ? V : std::min((even + step - 1) / step * step, V);
    const bool gradients = args.dx || args.dweight;
    const int64_t most_rows =
        std::max<int64_t>(gradients ? gradient_elements / std::max<int64_t>(V, 1)
                                    : loss_elements / std::max<int64_t>(columns, 1),
                          1);
    const int64_t blocks = std::max<int64_t>((N + most_rows - 1) / most_rows, 1);
    rows = (N + blocks - 1) / blocks;
  }
  Chunk at(int64_t row, int64_t column) const {
    return {row, column, std::min(rows, N - row), std::min(columns, V - column)};
  }
  template <class F>
  void for_each_chunk(int64_t row, const F& f) const {
    for (int64_t column = 0; column < V; column += columns) f(at(row, column));
  }

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

/// What follows from a call's shapes and dtypes: how it is cut and where its scratch is.
struct Plan {
  const ProjectionCrossEntropy& args;
  Tiling tiling;
  bool gradients;
  bool narrow;  ///< the gradient of the logits is rounded to x's dtype, for the products
  int64_t logits, dlogits, sums, product, bytes;

  Plan(const ProjectionCrossEntropy& args, const Device::Traits& traits)
      : args(args),
        tiling(args),
        gradients(args.dx || args.dweight),
        narrow(gradients && args.x.dtype() != args.loss.dtype()) {
    Carver carver;
    const int64_t chunk = tiling.rows * tiling.columns, block = tiling.rows * tiling.V;
    logits = carver.take((gradients ? block : chunk) * size_of(args.loss.dtype()));
    dlogits = carver.take(narrow ? chunk * size_of(args.x.dtype()) : 0);
    sums = carver.take(tiling.rows * static_cast<int64_t>(sizeof(OnlineLogSumExp)));
    // Scratch of a product follows from its extents and dtypes: loss stands for tensors of the
    // accumulator dtype, x for narrower ones.
    int64_t most = 0;
    const auto count = [&](const Matmul& m) {
      if (kernels::matmul.workspace_bytes)
        most = std::max(most, kernels::matmul.workspace_bytes(m, traits));
    };
    const Tensor& gradient = narrow ? args.x : args.loss;
    tiling.for_each_size([&](const Chunk& chunk) {
      count(logits_product(args.loss, chunk));
      if (args.dx) count(dx_product(gradient, chunk));
      if (args.dweight) count(dweight_product(gradient, chunk));
    });
    product = carver.take(most);
    bytes = carver.bytes;
  }

  Tensor x(const Chunk& chunk) const { return args.x.slice(chunk.row, chunk.row + chunk.rows); }
  Tensor weight(const Chunk& chunk) const {
    return args.weight.slice(chunk.column, chunk.column + chunk.columns);
  }

  Matmul logits_product(const Tensor& logits, const Chunk& chunk) const {
    return {.a = x(chunk),
            .b = weight(chunk),
            .c = logits,
            .M = chunk.rows,
            .N = chunk.columns,
            .K = tiling.C,
            .transpose_b = true};
  }
  Matmul dx_product(const Tensor& dlogits, const Chunk& chunk) const {
    return {.a = dlogits,
            .b = weight(chunk),
            .c = args.dx.slice(chunk.row, chunk.row + chunk.rows),
            .M = chunk.rows,
            .N = tiling.C,
            .K = chunk.columns,
            .accumulate = chunk.column > 0};
  }
  Matmul dweight_product(const Tensor& dlogits, const Chunk& chunk) const {
    return {.a = dlogits,
            .b = x(chunk),
            .c = args.dweight.slice(chunk.column, chunk.column + chunk.columns),
            .M = chunk.columns,
            .N = tiling.C,
            .K = chunk.rows,
            .transpose_a = true,
            .accumulate = chunk.row > 0};
  }
};

/// T is x's dtype.
template <class T>
class Run {
  using A = accumulator_t<T>;

 public:
  Run(const ProjectionCrossEntropy& args, Workspace workspace, Stream& stream)
      : plan_(args, stream.traits()),
        args_(args),
        workspace_(workspace),
        stream_(stream),
        table_(ZG_AT_LEVEL(stream.traits().isa, row_table)),
        targets_(args.targets),
        sums_(reinterpret_cast<OnlineLogSumExp*>(workspace.data + plan_.sums)) {}

  void all() {
    const Tiling& tiling = plan_.tiling;
    if (tiling.V == 0 && args_.dx) fill_zero(args_.dx, stream_);
    if (tiling.N == 0 && args_.dweight) fill_zero(args_.dweight, stream_);
    for (int64_t row = 0; row < tiling.N; row += tiling.rows) {
      const int64_t count = tiling.at(row, 0).rows;
      std::fill(sums_, sums_ + count, OnlineLogSumExp{});
      tiling.for_each_chunk(row, [&](const Chunk& chunk) { add_logits(chunk); });
      for (int64_t n = 0; n < count; ++n)
        args_.loss.template data<A>()[row + n] =
            is_ignored(row + n) ? A{0} : static_cast<A>(sums_[n].log_sum() - sums_[n].target);
      if (plan_.gradients)
        tiling.for_each_chunk(row, [&](const Chunk& chunk) { add_gradients(chunk); });
    }
  }

 private:
  Tensor scratch(int64_t offset, const Chunk& chunk, DType dtype) const {
    return workspace_.tensor->alias(workspace_.tensor->byte_offset() + offset,
                                    {chunk.rows, chunk.columns}, dtype);
  }
  /// Those of a block lie chunk behind chunk.
  Tensor logits_of(const Chunk& chunk) const {
    const int64_t before = plan_.gradients ? chunk.rows * chunk.column : 0;
    return scratch(plan_.logits + before * int64_t{sizeof(A)}, chunk, dtype_of<A>);
  }
  bool is_ignored(int64_t n) const { return targets_[n] == args_.ignore_index; }
  void multiply(const Matmul& product) const {
    kernels::matmul.cpu(
        product, {workspace_.data + plan_.product, workspace_.bytes - plan_.product}, stream_);
  }
  /// f(row of the block, where its part of the chunk begins), every row once.
  template <class F>
  void for_rows(const Chunk& chunk, const F& f) const {
    parallel_for(stream_.traits().threads, chunk.rows, rows_per_task(chunk.columns),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t n = begin; n < end; ++n) f(n, n * chunk.columns);
                 });
  }

  void add_logits(const Chunk& chunk) const {
    const Tensor logits = logits_of(chunk);
    multiply(plan_.logits_product(logits, chunk));
    const A* values = logits.data<A>();
    for_rows(chunk, [&](int64_t n, int64_t at) {
      sums_[n].add(table_, values + at, chunk.columns, targets_[chunk.row + n] - chunk.column);
    });
  }

  void add_gradients(const Chunk& chunk) const {
    const Tensor logits = logits_of(chunk);
    const Tensor dlogits = plan_.narrow ? scratch(plan_.dlogits, chunk, dtype_of<T>) : logits;
    const A* values = logits.data<A>();
    T* out = dlogits.data<T>();
    const A factor = static_cast<A>(args_.gradient_factor);
    for_rows(chunk, [&](int64_t n, int64_t at) {
      if (is_ignored(chunk.row + n)) {
        std::fill_n(out + at, chunk.columns, T{});
        return;
      }
      cross_entropy_gradient(table_, values + at, chunk.columns,
                             targets_[chunk.row + n] - chunk.column,
                             static_cast<A>(sums_[n].log_sum()), factor, out + at);
    });
    if (args_.dx) multiply(plan_.dx_product(dlogits, chunk));
    if (args_.dweight) multiply(plan_.dweight_product(dlogits, chunk));
  }

  const Plan plan_;
  const ProjectionCrossEntropy& args_;
  const Workspace workspace_;
  Stream& stream_;
  const RowTable* table_;
  const Indices targets_;
  OnlineLogSumExp* const sums_;  ///< of a block's rows
};

}  // namespace

int64_t projection_cross_entropy_workspace(const ProjectionCrossEntropy& args,
                                           const Device::Traits& traits) {
  return Plan(args, traits).bytes;
}

void projection_cross_entropy(const ProjectionCrossEntropy& args, Workspace workspace,
                              Stream& stream) {
  check_indices("projection_cross_entropy", "targets", args.targets, args.weight.extent(0),
                args.ignore_index);
  visit_floating(args.x.dtype(), [&]<class T>() { Run<T>(args, workspace, stream).all(); });
}

}  // namespace zg::cpu

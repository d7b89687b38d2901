#pragma once

#include <algorithm>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/matmul/matmul.h"

// projection_cross_entropy computes the logits [N, V] in chunks. This header has the chunks' sizes
// and the layout of the scratch memory. Backends differ only in LogitLimits.
namespace zg {

/// A chunk: rows [row, row + rows) and columns [column, column + columns) of [N, V]. In memory a
/// row begins `distance` elements after the previous row.
struct LogitChunk {
  int64_t row, column, rows, columns, distance;
};

/// The sizes of chunks that suit a backend.
struct LogitLimits {
  int64_t columns;  ///< most columns of a chunk
  /// The most logits in memory at a time. Without gradients (loss_elements) they are one chunk.
  /// With gradients they are all chunks of a block of rows, because gradients need the complete
  /// log-sum-exp of a row.
  int64_t loss_elements, gradient_elements;
  /// A block has at least this many rows if N is large enough, even if they exceed the elements.
  int64_t fewest_rows = 1;
  int64_t row_step = 1;  ///< `distance` is a multiple of this many elements
  /// Gradients in a narrower dtype overwrite the logits of their row. Requires chunks of all
  /// columns.
  bool overwrites = false;

  /// For processors with large caches. A chunk has enough columns that a product with these rows of
  /// the weight is fast, and few enough that it stays in a cache between the product that computes
  /// it and the pass that reads it: 16 MiB of f32, and 40 MiB for gradients. Each block reads the
  /// weight twice and adds to the whole weight gradient once; with fewer rows in a block, memory
  /// bandwidth would limit the speed.
  static constexpr LogitLimits for_caches() {
    return {
        .columns = 4096, .loss_elements = int64_t{4} << 20, .gradient_elements = int64_t{10} << 20};
  }
  /// For GPUs, where a product is fast if its tiles occupy all multiprocessors, and each launch
  /// costs microseconds: at least 4096 rows, all columns at once; more rows if their logits stay in
  /// an L2 cache, 16 MiB of f32. Rows begin at multiples of 16 bytes, as the fast products need.
  static constexpr LogitLimits for_gpus() {
    return {.columns = int64_t{1} << 40,
            .loss_elements = int64_t{4} << 20,
            .gradient_elements = int64_t{4} << 20,
            .fewest_rows = 4096,
            .row_step = 8,
            .overwrites = true};
  }
};

/// The division of [N, V] into blocks of rows and chunks of columns. It depends only on the shape
/// and the limits, so the bits do not depend on the number of threads. Columns are divided in the
/// same way with and without gradients, so that the loss has the same bits.
struct LogitTiling {
  int64_t N, V, C;
  int64_t rows, columns;  ///< rows of a whole block, columns of a whole chunk
  int64_t row_step;

  LogitTiling(const ProjectionCrossEntropy& args, const LogitLimits& limits)
      : N(args.x.extent(0)),
        V(args.weight.extent(0)),
        C(args.x.extent(1)),
        row_step(limits.row_step) {
    constexpr int64_t step = 64;  // whole register tiles of the products
    const int64_t chunks = std::max<int64_t>((V + limits.columns - 1) / limits.columns, 1);
    const int64_t even = (V + chunks - 1) / chunks;
    columns = chunks == 1 ? V : std::min((even + step - 1) / step * step, V);
    const bool gradients = args.dx || args.dweight;
    const int64_t max_rows =
        std::max<int64_t>(gradients ? limits.gradient_elements / std::max<int64_t>(V, 1)
                                    : limits.loss_elements / std::max<int64_t>(columns, 1),
                          1);
    const bool has_fewest = max_rows < limits.fewest_rows;
    const int64_t blocks =
        std::max<int64_t>(has_fewest ? N / limits.fewest_rows : (N + max_rows - 1) / max_rows, 1);
    rows = (N + blocks - 1) / blocks;
  }
  LogitChunk at(int64_t row, int64_t column) const {
    const int64_t width = std::min(columns, V - column);
    return {row, column, std::min(rows, N - row), width,
            (width + row_step - 1) / row_step * row_step};
  }
  template <class F>
  void for_each_chunk(int64_t row, const F& f) const {
    for (int64_t column = 0; column < V; column += columns) f(at(row, column));
  }

  /// Calls f with one chunk of each size that occurs.
  template <class F>
  void for_each_size(const F& f) const {
    if (N == 0 || V == 0) return;
    for (int64_t row : {int64_t{0}, (N - 1) / rows * rows})
      for (int64_t column : {int64_t{0}, (V - 1) / columns * columns}) f(at(row, column));
  }
};

/// The tiling of a call and the layout of its scratch memory. Both depend only on shapes and
/// dtypes.
struct ProjectionPlan {
  const ProjectionCrossEntropy& args;
  LogitTiling tiling;
  bool gradients;
  bool narrow;          ///< the gradient of the logits is rounded to x's dtype, for the products
  int64_t widened = 0;  ///< rows of a narrower weight that are converted at a time; 0: none
  int64_t dlogits_step = 1;  ///< `distance` of dlogits over that of logits
  int64_t logits, dlogits, sums, wide, product, bytes;  ///< offsets in the scratch, and its size

  /// `limits`: the backend's. `bytes_of_sum`: size of the running log-sum-exp of a row, if the
  /// backend keeps one.
  /// `product_bytes`: workspace_bytes of the backend's matmul, or null.
  ProjectionPlan(const ProjectionCrossEntropy& a, const Device::Traits& traits,
                 const LogitLimits& limits, int64_t bytes_of_sum,
                 Kernel<Matmul>::WorkspaceBytes product_bytes)
      : args(a),
        tiling(a, limits),
        gradients(a.dx || a.dweight),
        narrow(gradients && a.x.dtype() != a.loss.dtype()),
        bytes(0) {
    int64_t chunk = 0, block = 0;  // elements
    tiling.for_each_chunk(0, [&](const LogitChunk& part) {
      chunk = std::max(chunk, tiling.rows * part.distance);
      block += tiling.rows * part.distance;
    });
    logits = take((gradients ? block : chunk) * size_of(args.loss.dtype()));
    if (narrow && limits.overwrites)
      dlogits_step = size_of(args.loss.dtype()) / size_of(args.x.dtype());
    dlogits =
        narrow && limits.overwrites ? logits : take(narrow ? chunk * size_of(args.x.dtype()) : 0);
    sums = take(tiling.rows * bytes_of_sum);
    if (args.weight.dtype() != args.x.dtype() && tiling.columns > 0) {
      constexpr int64_t most_elements = int64_t{1} << 20, step = 64;
      const int64_t most = std::max(most_elements / std::max<int64_t>(tiling.C, 1), step);
      widened = std::min(most / step * step, tiling.columns);
    }
    wide = take(widened * tiling.C * size_of(args.x.dtype()));
    // The scratch of a product depends only on its extents and dtypes. So `loss` can stand for any
    // tensor of the accumulator dtype, and `x` for one of a narrower dtype.
    int64_t largest = 0;
    const auto count = [&](const Matmul& m) {
      if (product_bytes) largest = std::max(largest, product_bytes(m, traits));
    };
    const Tensor& gradient = narrow ? args.x : args.loss;
    tiling.for_each_size([&](const LogitChunk& part) {
      for_each_logits_product(args.loss, part, args.x, [&](const Matmul& m, int64_t) { count(m); });
      if (args.dx) count(dx_product(gradient, part));
      if (args.dweight) count(dweight_product(gradient, part));
    });
    product = take(largest);
  }

  /// Where a chunk's logits are stored. For gradients all chunks of a block are kept, one after the
  /// other.
  Tensor logits_of(const Workspace& workspace, const LogitChunk& chunk) const {
    const int64_t before = gradients ? chunk.rows * tiling.at(chunk.row, 0).distance *
                                           (chunk.column / std::max<int64_t>(tiling.columns, 1))
                                     : 0;
    const DType dtype = args.loss.dtype();
    return part_of(workspace, logits + before * size_of(dtype), chunk, dtype);
  }
  /// Where a chunk's dlogits are stored: over the logits, unless their dtype is narrower and the
  /// backend does not overwrite. Rows are distance * dlogits_step apart.
  Tensor dlogits_of(const Workspace& workspace, const LogitChunk& chunk) const {
    if (!narrow) return logits_of(workspace, chunk);
    LogitChunk apart = chunk;
    apart.distance *= dlogits_step;
    return part_of(workspace, dlogits, apart, args.x.dtype());
  }

  /// Computes the logits of a chunk. A weight in a narrower dtype is converted some rows at a time;
  /// the sums of each logit keep their order.
  template <class Multiply>
  void make_logits(const Workspace& workspace, const LogitChunk& chunk, Stream& stream,
                   const Multiply& multiply) const {
    const Tensor rows = widened ? workspace.tensor->alias(workspace.tensor->byte_offset() + wide,
                                                          {widened, tiling.C}, args.x.dtype())
                                : args.weight;
    const Tensor logits_memory = logits_of(workspace, chunk);
    for_each_logits_product(logits_memory, chunk, rows, [&](Matmul product, int64_t begin) {
      if (widened) {
        const int64_t row = chunk.column + begin;
        product.b = rows.slice(0, product.N);
        product.c = logits_memory.flat(begin, logits_memory.numel() - begin);
        kernels::cast[args.x.device().type()].function(
            {args.weight.slice(row, row + product.N), product.b}, {}, stream);
      }
      multiply(product);
    });
  }
  Matmul dx_product(const Tensor& from, const LogitChunk& chunk) const {
    return {.a = from,
            .b = weight(chunk),
            .c = args.dx.slice(chunk.row, chunk.row + chunk.rows),
            .M = chunk.rows,
            .N = tiling.C,
            .K = chunk.columns,
            .accumulate = chunk.column > 0,
            .lda = chunk.distance * dlogits_step};
  }
  Matmul dweight_product(const Tensor& from, const LogitChunk& chunk) const {
    return {.a = from,
            .b = x(chunk),
            .c = args.dweight.slice(chunk.column, chunk.column + chunk.columns),
            .M = chunk.columns,
            .N = tiling.C,
            .K = chunk.rows,
            .transpose_a = true,
            .accumulate = chunk.row > 0,
            .lda = chunk.distance * dlogits_step};
  }

 private:
  /// Reserves `part` bytes of scratch and returns their offset, a multiple of 256.
  int64_t take(int64_t part) {
    const int64_t offset = bytes;
    bytes += part > 0 ? arena_bytes(part) : 0;
    return offset;
  }
  /// Calls f with the products of a chunk's logits, and the column of the chunk at which each
  /// begins. `rows`: memory for converted rows, if the weight is narrower.
  template <class F>
  void for_each_logits_product(const Tensor& to, const LogitChunk& chunk, const Tensor& rows,
                               const F& f) const {
    Matmul product{.a = x(chunk),
                   .b = weight(chunk),
                   .c = to,
                   .M = chunk.rows,
                   .N = chunk.columns,
                   .K = tiling.C,
                   .transpose_b = true,
                   .ldc = chunk.distance};
    if (!widened) return f(product, int64_t{0});
    product.b = rows;
    for (int64_t begin = 0; begin < chunk.columns; begin += widened) {
      product.N = std::min(widened, chunk.columns - begin);
      f(product, begin);
    }
  }
  Tensor x(const LogitChunk& chunk) const {
    return args.x.slice(chunk.row, chunk.row + chunk.rows);
  }
  Tensor weight(const LogitChunk& chunk) const {
    return args.weight.slice(chunk.column, chunk.column + chunk.columns);
  }
  static Tensor part_of(const Workspace& workspace, int64_t offset, const LogitChunk& chunk,
                        DType dtype) {
    return workspace.tensor->alias(workspace.tensor->byte_offset() + offset,
                                   {chunk.rows, chunk.distance}, dtype);
  }
};

namespace cuda {
inline ProjectionPlan projection_plan(const ProjectionCrossEntropy& a,
                                      const Device::Traits& traits) {
  constexpr int64_t no_sums = 0;  // a chunk has whole rows
  return {a, traits, LogitLimits::for_gpus(), no_sums,
          kernels::matmul[Device::Type::cuda].workspace_bytes};
}
}  // namespace cuda

namespace hpu {
/// The scratch also has four floats for each row of a block; see projection_cross_entropy.cl, whose
/// work-items do not wait for each other, so that nothing overwrites logits.
inline ProjectionPlan projection_plan(const ProjectionCrossEntropy& a,
                                      const Device::Traits& traits) {
  LogitLimits limits = LogitLimits::for_gpus();
  limits.overwrites = false;
  return {a, traits, limits, 4 * int64_t{sizeof(float)},
          kernels::matmul[Device::Type::hpu].workspace_bytes};
}
}  // namespace hpu

}  // namespace zg

#pragma once

#include <algorithm>

#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/matmul/matmul.h"

// projection_cross_entropy computes the logits [N, V] in chunks. This header has the chunks' sizes
// and the layout of the scratch memory. They are the same for every backend.
namespace zg {

/// A chunk: rows [row, row + rows) and columns [column, column + columns) of [N, V].
struct LogitChunk {
  int64_t row, column, rows, columns;
};

/// How [N, V] is cut into blocks of rows and chunks of columns. It depends on the shape alone, so
/// the bits do not depend on the number of threads. Columns are cut in the same way with and
/// without gradients, so that the loss has the same bits.
struct LogitTiling {
  // Columns of a chunk: so many that a product with these rows of the weight is fast, so few that a
  // chunk stays in a cache between the product that computes it and the pass that reads it.
  static constexpr int64_t max_columns = 4096;
  // Logits in memory at a time. For the loss alone: one chunk, 16 MiB of f32. Gradients need the
  // complete log-sum-exp of a row, so all chunks of a block of rows are kept: 40 MiB of f32. Each
  // block reads the weight twice and adds to the whole weight gradient once; with fewer rows in a
  // block, memory bandwidth would limit the speed.
  static constexpr int64_t loss_elements = int64_t{4} << 20, gradient_elements = int64_t{10} << 20;

  int64_t N, V, C;
  int64_t rows, columns;  ///< rows of a whole block, columns of a whole chunk

  explicit LogitTiling(const ProjectionCrossEntropy& args)
      : N(args.x.extent(0)), V(args.weight.extent(0)), C(args.x.extent(1)) {
    constexpr int64_t step = 64;  // whole register tiles of the products
    const int64_t chunks = std::max<int64_t>((V + max_columns - 1) / max_columns, 1);
    const int64_t even = (V + chunks - 1) / chunks;
    columns = chunks == 1 ? V : std::min((even + step - 1) / step * step, V);
    const bool gradients = args.dx || args.dweight;
    const int64_t max_rows =
        std::max<int64_t>(gradients ? gradient_elements / std::max<int64_t>(V, 1)
                                    : loss_elements / std::max<int64_t>(columns, 1),
                          1);
    const int64_t blocks = std::max<int64_t>((N + max_rows - 1) / max_rows, 1);
    rows = (N + blocks - 1) / blocks;
  }
  LogitChunk at(int64_t row, int64_t column) const {
    return {row, column, std::min(rows, N - row), std::min(columns, V - column)};
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

/// The tiling of a call and the layout of its scratch memory. Both follow from shapes and dtypes
/// alone.
struct ProjectionPlan {
  const ProjectionCrossEntropy& args;
  LogitTiling tiling;
  bool gradients;
  bool narrow;  ///< the gradient of the logits is rounded to x's dtype, for the products
  int64_t logits, dlogits, sums, product, bytes;  ///< offsets in the scratch, and its size

  /// `bytes_of_sum`: size of the running log-sum-exp of a row. `product_bytes`: workspace_bytes of
  /// the backend's matmul, or null.
  ProjectionPlan(const ProjectionCrossEntropy& a, const Device::Traits& traits,
                 int64_t bytes_of_sum, Kernel<Matmul>::WorkspaceBytes product_bytes)
      : args(a),
        tiling(a),
        gradients(a.dx || a.dweight),
        narrow(gradients && a.x.dtype() != a.loss.dtype()),
        bytes(0) {
    const int64_t chunk = tiling.rows * tiling.columns, block = tiling.rows * tiling.V;
    logits = take((gradients ? block : chunk) * size_of(args.loss.dtype()));
    dlogits = take(narrow ? chunk * size_of(args.x.dtype()) : 0);
    sums = take(tiling.rows * bytes_of_sum);
    // The scratch of a product depends only on its extents and dtypes. So `loss` can stand for any
    // tensor of the accumulator dtype, and `x` for one of a narrower dtype.
    int64_t largest = 0;
    const auto count = [&](const Matmul& m) {
      if (product_bytes) largest = std::max(largest, product_bytes(m, traits));
    };
    const Tensor& gradient = narrow ? args.x : args.loss;
    tiling.for_each_size([&](const LogitChunk& part) {
      count(logits_product(args.loss, part));
      if (args.dx) count(dx_product(gradient, part));
      if (args.dweight) count(dweight_product(gradient, part));
    });
    product = take(largest);
  }

  /// Where a chunk's logits are stored. For gradients all chunks of a block are kept, one after the
  /// other.
  Tensor logits_of(const Workspace& workspace, const LogitChunk& chunk) const {
    const int64_t before = gradients ? chunk.rows * chunk.column : 0;
    const DType dtype = args.loss.dtype();
    return part_of(workspace, logits + before * size_of(dtype), chunk, dtype);
  }
  /// Where a chunk's dlogits are stored: over the logits, unless their dtype is narrower.
  Tensor dlogits_of(const Workspace& workspace, const LogitChunk& chunk) const {
    return narrow ? part_of(workspace, dlogits, chunk, args.x.dtype())
                  : logits_of(workspace, chunk);
  }

  Matmul logits_product(const Tensor& to, const LogitChunk& chunk) const {
    return {.a = x(chunk),
            .b = weight(chunk),
            .c = to,
            .M = chunk.rows,
            .N = chunk.columns,
            .K = tiling.C,
            .transpose_b = true};
  }
  Matmul dx_product(const Tensor& from, const LogitChunk& chunk) const {
    return {.a = from,
            .b = weight(chunk),
            .c = args.dx.slice(chunk.row, chunk.row + chunk.rows),
            .M = chunk.rows,
            .N = tiling.C,
            .K = chunk.columns,
            .accumulate = chunk.column > 0};
  }
  Matmul dweight_product(const Tensor& from, const LogitChunk& chunk) const {
    return {.a = from,
            .b = x(chunk),
            .c = args.dweight.slice(chunk.column, chunk.column + chunk.columns),
            .M = chunk.columns,
            .N = tiling.C,
            .K = chunk.rows,
            .transpose_a = true,
            .accumulate = chunk.row > 0};
  }

 private:
  /// Reserves `part` bytes of scratch and returns their offset, a multiple of 256.
  int64_t take(int64_t part) {
    const int64_t offset = bytes;
    bytes += part > 0 ? arena_bytes(part) : 0;
    return offset;
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
                                   {chunk.rows, chunk.columns}, dtype);
  }
};

}  // namespace zg

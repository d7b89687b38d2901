#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <algorithm>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/matmul/matmul_cpu.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(ActivationTable, activation_table)

namespace {

// One task is a tile of c. The tiles are so small that Eigen packs them on the stack (it uses up to
// 128 KiB there) and allocates no memory.
constexpr int64_t tile = 64, tile_depth = 128;

/// The scratch of one worker: tiles of the operands, and of the sums, one for each level of the
/// tree of groups and one for its root.
struct Scratch {
  double *a, *b, *levels;

  static int64_t numel(const Matmul& m) {
    return 2 * tile * tile_depth + (levels_of(m) + 1) * tile * tile;
  }
  Scratch(const Matmul& m, Workspace workspace, int worker)
      : a(reinterpret_cast<double*>(workspace.data) + worker * numel(m)),
        b(a + tile * tile_depth),
        levels(b + tile * tile_depth) {}
};

using Matrix = Eigen::Map<Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

/// A tile's position and size.
struct TileRange {
  int64_t row, column, rows, columns;
};

Matrix copy(const double* source, bool transpose, int64_t row_stride, const TileRange& p,
            double* out) {
  for (int64_t i = p.row; i < p.row + p.rows; ++i)
    for (int64_t j = p.column; j < p.column + p.columns; ++j)
      *out++ = source[transpose ? j * row_stride + i : i * row_stride + j];
  return {out - p.rows * p.columns, p.rows, p.columns};
}

void finish(const Matmul& m, int64_t item, const TileRange& p, const double* sums, Isa isa) {
  const double* bias = m.bias ? m.bias.data<double>() + p.column : nullptr;
  const auto gelu = ZG_AT_LEVEL(isa, activation_table)
                        .form[static_cast<size_t>(m.activation)]
                        .type[static_cast<size_t>(DType::f64)]
                        .forward;
  for (int64_t i = 0; i < p.rows; ++i, sums += p.columns) {
    const int64_t at = item * m.stride_c + (p.row + i) * m.ldc + p.column;
    double* c = m.c.data<double>() + at;
    for (int64_t j = 0; j < p.columns; ++j)
      c[j] = sums[j] + (bias ? bias[j] : 0.0) + (m.accumulate ? c[j] : 0.0);
    if (m.pre_activation) std::copy_n(c, p.columns, m.pre_activation.data<double>() + at);
    if (m.activation != Activation::none) gelu(c, c, p.columns);
  }
}

void multiply_tile(const Matmul& m, const std::vector<KRange>& ranges, int64_t item,
                   const TileRange& p, const Scratch& scratch, Isa isa) {
  const double* a = m.a.data<double>() + item * m.stride_a;
  const double* b = m.b.data<double>() + item * m.stride_b;
  const auto level = [&](int64_t i) { return scratch.levels + i * tile * tile; };
  for (const KRange& range : ranges) {
    Matrix sums(level(range.folds), p.rows, p.columns);
    if (range.begins_group) sums.setZero();
    for (int64_t k = 0; k < range.depth; k += tile_depth) {
      const int64_t depth = std::min(tile_depth, range.depth - k), first = range.k + k;
      sums.noalias() +=
          copy(a, m.transpose_a, m.lda, {p.row, first, p.rows, depth}, scratch.a) *
          copy(b, m.transpose_b, m.ldb, {first, p.column, depth, p.columns}, scratch.b);
    }
    for (int64_t i = 0; range.ends_group && i < range.folds; ++i)
      sums += Matrix(level(i), p.rows, p.columns);
  }
  finish(m, item, p, level(levels_of(m)), isa);
}

}  // namespace

int64_t matmul_reference_workspace_bytes(const Matmul& m, const Device::Traits& traits) {
  return Scratch::numel(m) * int64_t{sizeof(double)} * matmul_threads(m, traits);
}

void matmul_reference(const Matmul& args, Workspace workspace, Stream& stream) {
  const Matmul m = canonical(args);
  const int64_t row_tiles = ceil_div(m.M, tile), column_tiles = ceil_div(m.N, tile);
  const std::vector<KRange> ranges = ranges_of(m, 1, std::max<int64_t>(m.K, 1));
  const Device::Traits& traits = stream.traits();
  team(matmul_threads(m, traits), m.batch * row_tiles * column_tiles,
       [&](int64_t task, int worker) {
         const int64_t row = task % row_tiles * tile;
         const int64_t column = task / row_tiles % column_tiles * tile;
         const int64_t item = task / row_tiles / column_tiles;
         multiply_tile(m, ranges, item,
                       {row, column, std::min(tile, m.M - row), std::min(tile, m.N - column)},
                       {m, workspace, worker}, traits.isa);
       });
}

}  // namespace zg::cpu

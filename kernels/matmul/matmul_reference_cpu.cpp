#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <algorithm>

#include "zerograd/kernels/elementwise/gelu_scalar.h"
#include "zerograd/kernels/matmul/matmul_cpu.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {
namespace {

// One task is a tile of c. The tiles are so small that Eigen packs them on the stack (it uses up to
// 128 KiB there) and allocates no memory.
constexpr int64_t tile = 64, tile_depth = 128;

/// The scratch of one worker: tiles of the operands in the accumulator type S, and of the sums.
template <class S>
struct Tiles {
  S a[tile * tile_depth], b[tile_depth * tile], sums[tile * tile];
};

template <class S>
using Matrix = Eigen::Map<Eigen::Matrix<S, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                          Eigen::OuterStride<>>;

/// A tile's position and size.
struct TileRange {
  int64_t row, column, rows, columns;
};
inline int64_t element(bool transpose, int64_t row_stride, int64_t row, int64_t column) {
  return transpose ? column * row_stride + row : row * row_stride + column;
}

template <class T, class S>
Matrix<S> widen(const T* source, bool transpose, int64_t row_stride, const TileRange& p, S* out) {
  for (int64_t i = 0; i < p.rows; ++i)
    for (int64_t j = 0; j < p.columns; ++j)
      out[i * p.columns + j] =
          static_cast<S>(source[element(transpose, row_stride, p.row + i, p.column + j)]);
  return Matrix<S>(out, p.rows, p.columns, Eigen::OuterStride<>(p.columns));
}

template <class T, class Out, class S>
void finish(const Matmul& m, int64_t item, const TileRange& p, const S* sums) {
  const T* bias = m.bias ? m.bias.data<T>() : nullptr;
  Out* c = m.c.data<Out>() + item * m.stride_c;
  Out* pre_activation =
      m.pre_activation ? m.pre_activation.data<Out>() + item * m.stride_c : nullptr;
  for (int64_t i = 0; i < p.rows; ++i)
    for (int64_t j = 0; j < p.columns; ++j) {
      const int64_t at = (p.row + i) * m.ldc + p.column + j;
      S x = sums[i * p.columns + j];
      if (bias) x += static_cast<S>(bias[p.column + j]);
      if (m.accumulate) x += static_cast<S>(c[at]);
      const auto sum = static_cast<Out>(x);
      if (pre_activation) pre_activation[at] = sum;
      c[at] = m.activation == Activation::none
                  ? sum
                  : static_cast<Out>(gelu(static_cast<S>(sum), m.activation));
    }
}

/// One worker's scratch: its tiles, and a tile of sums for each level of the tree of groups.
template <class S>
struct Scratch {
  Tiles<S>& tiles;
  S* levels;

  static size_t bytes(const Matmul& m) {
    return sizeof(Tiles<S>) + static_cast<size_t>(levels_of(m) * tile * tile) * sizeof(S);
  }
  Scratch(const Matmul& m, Workspace workspace, int worker)
      : tiles(
            *reinterpret_cast<Tiles<S>*>(workspace.data + bytes(m) * static_cast<size_t>(worker))),
        levels(reinterpret_cast<S*>(&tiles + 1)) {}
};

template <class T>
void tile_of(const Matmul& m, const std::vector<KRange>& ranges, int64_t item, const TileRange& p,
             const Scratch<accumulator_t<T>>& scratch) {
  using S = accumulator_t<T>;
  auto& [tiles, levels] = scratch;
  const T* a = m.a.data<T>() + item * m.stride_a;
  const T* b = m.b.data<T>() + item * m.stride_b;
  for (const KRange& range : ranges) {
    S* total = range.folds == levels_of(m) ? tiles.sums : levels + range.folds * tile * tile;
    Matrix<S> sums(total, p.rows, p.columns, Eigen::OuterStride<>(p.columns));
    if (range.begins_group) sums.setZero();
    for (int64_t k = 0; k < range.depth; k += tile_depth) {
      const int64_t depth = std::min(tile_depth, range.depth - k), first = range.k + k;
      sums.noalias() +=
          widen(a, m.transpose_a, m.lda, {p.row, first, p.rows, depth}, tiles.a) *
          widen(b, m.transpose_b, m.ldb, {first, p.column, depth, p.columns}, tiles.b);
    }
    for (int64_t level = 0; range.ends_group && level < range.folds; ++level)
      sums += Matrix<S>(levels + level * tile * tile, p.rows, p.columns,
                        Eigen::OuterStride<>(p.columns));
  }
  if (m.c.dtype() == dtype_of<T>)
    finish<T, T>(m, item, p, tiles.sums);
  else
    finish<T, S>(m, item, p, tiles.sums);
}

template <class T>
void multiply(const Matmul& m, Workspace workspace, int threads) {
  const int64_t row_tiles = ceil_div(m.M, tile), column_tiles = ceil_div(m.N, tile);
  const std::vector<KRange> ranges = ranges_of(m, 1, std::max<int64_t>(m.K, 1));
  team(threads, m.batch * row_tiles * column_tiles, [&](int64_t task, int worker) {
    const int64_t row = task % row_tiles * tile;
    const int64_t column = task / row_tiles % column_tiles * tile;
    const int64_t item = task / row_tiles / column_tiles;
    tile_of<T>(m, ranges, item,
               {row, column, std::min(tile, m.M - row), std::min(tile, m.N - column)},
               {m, workspace, worker});
  });
}

}  // namespace

int64_t matmul_reference_workspace_bytes(const Matmul& m, const Device::Traits& traits) {
  const size_t bytes =
      m.a.dtype() == DType::f64 ? Scratch<double>::bytes(m) : Scratch<float>::bytes(m);
  return static_cast<int64_t>(bytes) * matmul_threads(m, traits);
}

void matmul_reference(const Matmul& args, Workspace workspace, Stream& stream) {
  const Matmul m = canonical(args);
  const int threads = matmul_threads(m, stream.traits());
  switch (m.a.dtype()) {
    case DType::f64:
      return multiply<double>(m, workspace, threads);
    case DType::f32:
      return multiply<float>(m, workspace, threads);
    case DType::bf16:
      return multiply<bf16>(m, workspace, threads);
    default:
      return multiply<f16>(m, workspace, threads);
  }
}

}  // namespace zg::cpu

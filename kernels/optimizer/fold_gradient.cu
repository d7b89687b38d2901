#include "zerograd/kernels/optimizer/optimizer.h"

#include <algorithm>

#include "zerograd/kernels/cuda/tile.cuh"

namespace zg::cuda {
namespace {

/// sum + leaf rounded to Rounding; the first leaf is added to 0.
template <class Leaf, class Rounding, class Sum>
struct Fold {
  __device__ Sum operator()(Leaf leaf) const { return added(0.0f, leaf); }
  __device__ Sum operator()(Leaf leaf, Sum sum) const { return added(to_float(sum), leaf); }

  __device__ static Sum added(float sum, Leaf leaf) {
    return from_float<Sum>(sum + to_float(from_float<Rounding>(to_float(leaf))));
  }
};

// Many arrays in one launch, as in update.cu: a block handles consecutive elements of one of them.
// Memory bound. A thread handles `width` neighbouring elements, as many as 16 bytes hold of the
// narrower type, if both arrays are aligned for that.
constexpr int threads = 256;

struct Piece {
  const void* leaf;
  void* sum;
  int64_t n;
  uint32_t first_block;  // first block of the launch that handles this piece
  bool is_first, is_aligned;
};

/// The arguments of a launch, passed by value; they fit 4 KiB.
struct Launch {
  static constexpr int max_pieces = 127;
  Piece pieces[max_pieces];
  int count;
};
static_assert(sizeof(Launch) <= 4096);

template <int V, class F, class Leaf, class Sum>
__device__ inline void fold_at(const F& fold, const Leaf* leaf, Sum* sum, bool is_first) {
  const auto x = load<V>(leaf);
  Vec<Sum, V> y;
  if (!is_first) y = load<V>(static_cast<const Sum*>(sum));
#pragma unroll
  for (int k = 0; k < V; ++k) y.v[k] = is_first ? fold(x.v[k]) : fold(x.v[k], y.v[k]);
  store(sum, y);
}

template <class Leaf, class Rounding, class Sum>
constexpr int width = 16 / static_cast<int>(std::min(sizeof(Leaf), sizeof(Sum)));

template <class Leaf, class Rounding, class Sum>
__global__ void __launch_bounds__(threads) fold_pieces(const __grid_constant__ Launch a) {
  const Piece& p = a.pieces[piece_of_block(a.pieces, a.count)];
  constexpr int V = width<Leaf, Rounding, Sum>;
  const Fold<Leaf, Rounding, Sum> fold;
  const Leaf* const leaf = static_cast<const Leaf*>(p.leaf);
  Sum* const sum = static_cast<Sum*>(p.sum);
  const int64_t begin = int64_t{blockIdx.x - p.first_block} * (threads * V);
  const int64_t i = begin + int64_t{threadIdx.x} * (p.is_aligned ? V : 1);
  if (p.is_aligned && i + V <= p.n) return fold_at<V>(fold, leaf + i, sum + i, p.is_first);
  const int stride = p.is_aligned ? 1 : threads;
#pragma unroll 1
  for (int k = 0; k < V; ++k)
    if (i + k * stride < p.n)
      fold_at<1>(fold, leaf + i + k * stride, sum + i + k * stride, p.is_first);
}

template <class Leaf, class Rounding, class Sum>
void run(const FoldGradient& a, Stream& stream) {
  constexpr int V = width<Leaf, Rounding, Sum>;
  Launch next{.count = 0};
  uint32_t blocks = 0;
  int64_t bytes = 0, elements = 0;
  const auto flush = [&] {
    launch({"fold_gradient", "fold_pieces", bytes, elements}, fold_pieces<Leaf, Rounding, Sum>,
           {dim3(blocks), dim3(threads)}, stream, next);
    next.count = 0;
    blocks = 0;
    bytes = elements = 0;
  };
  for (const FoldGradient::Part& part : a.parts) {
    const int64_t n = part.leaf.numel();
    if (n == 0) continue;
    const Leaf* leaf = part.leaf.data<Leaf>();
    Sum* sum = part.sum.data<Sum>();
    next.pieces[next.count++] = {.leaf = leaf,
                                 .sum = sum,
                                 .n = n,
                                 .first_block = blocks,
                                 .is_first = part.first,
                                 .is_aligned = starts_vector<V>(leaf) && starts_vector<V>(sum)};
    blocks += blocks_for(n, threads * V).x;
    bytes += part.leaf.bytes() + (part.first ? 1 : 2) * part.sum.bytes();
    elements += n;
    if (next.count == Launch::max_pieces) flush();
  }
  flush();
}

}  // namespace

void fold_gradient(const FoldGradient& a, Workspace, Stream& stream) {
  if (a.parts.empty()) return;
  visit_floating(a.parts[0].leaf.dtype(), [&]<class Leaf>(Leaf) {
    visit_floating(a.rounding, [&]<class Rounding>(Rounding) {
      if (a.parts[0].sum.dtype() == DType::bf16)
        run<Leaf, Rounding, bf16>(a, stream);
      else
        run<Leaf, Rounding, float>(a, stream);
    });
  });
}

}  // namespace zg::cuda

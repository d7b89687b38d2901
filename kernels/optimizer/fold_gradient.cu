#include "zerograd/kernels/optimizer/optimizer.h"

#include "zerograd/kernels/cuda/tile.cuh"

namespace zg::cuda {
namespace {

constexpr int threads = 256, width = 4;

/// sum = (first ? 0 : sum) + leaf rounded to Rounding, V elements for each thread. Memory bound.
template <class Leaf, class Rounding, class Sum, int V>
__global__ void __launch_bounds__(threads) fold(const Leaf* leaf, Sum* sum, int64_t n, bool first) {
  const int64_t i = (int64_t{blockIdx.x} * threads + threadIdx.x) * V;
  if (i >= n) return;
  const auto x = load<V>(leaf + i);
  Vec<Sum, V> y = {};
  if (!first) y = load<V>(sum + i);
#pragma unroll
  for (int k = 0; k < V; ++k)
    y.v[k] = from_float<Sum>((first ? 0.0f : to_float(y.v[k])) +
                             to_float(from_float<Rounding>(to_float(x.v[k]))));
  store(sum + i, y);
}

template <class T>
bool starts_vector(const T* start) {
  return reinterpret_cast<uintptr_t>(start) % (width * sizeof(T)) == 0;
}

template <class Leaf, class Rounding, class Sum>
void run(const FoldGradient& a, Stream& stream) {
  const Leaf* leaf = a.leaf.data<Leaf>();
  Sum* sum = a.sum.data<Sum>();
  const int64_t n = a.leaf.numel();
  if (n % width == 0 && starts_vector(leaf) && starts_vector(sum))
    launch("fold_gradient", fold<Leaf, Rounding, Sum, width>,
           {blocks_for(n, threads * width), dim3(threads)}, stream, leaf, sum, n, a.first);
  else
    launch("fold_gradient", fold<Leaf, Rounding, Sum, 1>, {blocks_for(n, threads), dim3(threads)},
           stream, leaf, sum, n, a.first);
}

}  // namespace

void fold_gradient(const FoldGradient& a, Workspace, Stream& stream) {
  visit_floating(a.leaf.dtype(), [&]<class Leaf>(Leaf) {
    visit_floating(a.rounding, [&]<class Rounding>(Rounding) {
      if (a.sum.dtype() == DType::bf16)
        run<Leaf, Rounding, bf16>(a, stream);
      else
        run<Leaf, Rounding, float>(a, stream);
    });
  });
}

}  // namespace zg::cuda

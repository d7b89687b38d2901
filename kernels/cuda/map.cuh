#pragma once

#include <algorithm>

#include "zerograd/kernels/cuda/tile.cuh"

// y[i] = f(x[i]...) over arrays of one size. Memory bound. A thread handles V neighbouring
// elements, as many as 16 bytes hold of the narrowest type, or one element if an array is not
// aligned for that.
namespace zg::cuda {

inline constexpr int map_threads = 256;

template <int V, class Y, class F, class... X>
__device__ inline void map_vector(const F& f, Y* y, const Vec<X, V>&... x) {
  Vec<Y, V> result;
#pragma unroll
  for (int k = 0; k < V; ++k) result.v[k] = f(x.v[k]...);
  store(y, result);
}

template <int V, class Y, class F, class... X>
__global__ void __launch_bounds__(map_threads) map_kernel(F f, int64_t n, Y* y, const X*... x) {
  const int64_t begin = (int64_t{blockIdx.x} * map_threads + threadIdx.x) * V;
  if constexpr (V > 1) {
    if (begin + V <= n) return map_vector<V>(f, y + begin, load<V>(x + begin)...);
  }
  for (int64_t i = begin; i < begin + V && i < n; ++i) y[i] = f(x[i]...);
}

/// y[i] = f(x[i]...); y may be one of x. F is a struct with a __device__ operator() const.
template <class Y, class F, class... X>
void map(const char* name, const F& f, int64_t n, Stream& stream, Y* y, const X*... x) {
  constexpr int narrowest = static_cast<int>(std::min({sizeof(Y), sizeof(X)...}));
  constexpr int V = 16 / narrowest;
  const Work work(name, "map", n * static_cast<int64_t>((sizeof(Y) + ... + sizeof(X))), n);
  if (starts_vector<V>(y) && (starts_vector<V>(x) && ...))
    launch(work, map_kernel<V, Y, F, X...>, {blocks_for(n, map_threads * V), dim3(map_threads)},
           stream, f, n, y, x...);
  else
    launch(work, map_kernel<1, Y, F, X...>, {blocks_for(n, map_threads), dim3(map_threads)}, stream,
           f, n, y, x...);
}

}  // namespace zg::cuda

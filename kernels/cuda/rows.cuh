#pragma once

#include <math_constants.h>

#include "zerograd/kernels/cuda/tile.cuh"

// Rows of C elements for a team of `warps` warps: what softmax and cross-entropy have in common.
namespace zg::cuda {

inline constexpr int row_warps = 8;         // warps in a block
inline constexpr int64_t short_row = 1024;  // up to here a warp has a row to itself

/// The row of this thread's team and the thread's place in it; absent behind the last row.
template <int warps>
struct Row {
  static constexpr int threads = lanes * warps;
  int64_t n;
  int first;
  __device__ Row()
      : n(int64_t{blockIdx.x} * (row_warps / warps) + threadIdx.x / threads),
        first(static_cast<int>(threadIdx.x) % threads) {}
};

template <int warps, class T>
__device__ inline float row_max(const T* x, int64_t C, int first) {
  float best = -CUDART_INF_F;
  for (int64_t i = first; i < C; i += Row<warps>::threads) {
    const float value = to_float(x[i]);
    best = value > best || value != value ? value : best;
  }
  return block_max<warps>(best);
}

template <int warps, class T>
__device__ inline float row_exp_sum(const T* x, float best, int64_t C, int first) {
  float sum = 0.0f;
  for (int64_t i = first; i < C; i += Row<warps>::threads) sum += expf(to_float(x[i]) - best);
  return block_sum<warps>(sum);
}

/// Whether the row has a target; one that is outside is reported and counts as ignored.
template <class Index>
__device__ inline bool has_target(const Index* targets, int64_t n, int64_t V, int64_t ignored,
                                  bool reports, const char* op, Fault* fault) {
  const int64_t target = targets[n];
  if (target == ignored) return false;
  if (target >= 0 && target < V) return true;
  if (reports) report(fault, op, "targets", n, target, V);
  return false;
}

/// f(warps) as an integral constant: what suits rows of C elements.
template <class F>
void with_row_warps(int64_t C, const F& f) {
  if (C <= short_row)
    f(std::integral_constant<int, 1>());
  else
    f(std::integral_constant<int, row_warps>());
}

/// Blocks and threads for N rows.
template <int warps>
Grid row_grid(int64_t N) {
  return {blocks_for(N, row_warps / warps), dim3(lanes * row_warps)};
}

}  // namespace zg::cuda

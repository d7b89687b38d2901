#pragma once

#include <math_constants.h>

#include "zerograd/kernels/cuda/tile.cuh"

// Shared by softmax and cross-entropy: a row of C elements is handled by a team of `warps` warps,
// one for rows of up to 1024 elements and all 8 warps of a block for longer rows. With 0 warps a
// team is one thread.
namespace zg::cuda {

inline constexpr int row_warps = 8;         // warps in a block
inline constexpr int64_t short_row = 1024;  // largest C for which one warp handles a row

/// The row n of this thread's team, and the thread's index `first` within the team: it handles
/// elements first, first + threads, ... The caller returns if n is not below the number of rows.
template <int warps>
struct Row {
  static constexpr int threads = warps > 0 ? lanes* warps : 1;
  int64_t n;
  int first;
  __device__ Row()
      : n(int64_t{blockIdx.x} * (row_warps * lanes / threads) + threadIdx.x / threads),
        first(static_cast<int>(threadIdx.x) % threads) {}
};

/// The maximum of row x, the same in every thread of the team. NaN if an element is NaN. Elements
/// of the row are `step` apart.
template <int warps, class T>
__device__ inline float row_max(const T* x, int64_t C, int first, int64_t step = 1) {
  float maximum = -CUDART_INF_F;
  for (int64_t i = first; i < C; i += Row<warps>::threads) {
    const float value = to_float(x[i * step]);
    maximum = value > maximum || value != value ? value : maximum;
  }
  return block_max<warps>(maximum);
}

/// The sum of exp(x[i] - maximum) over the row, the same in every thread of the team.
template <int warps, class T>
__device__ inline float row_exp_sum(const T* x, float maximum, int64_t C, int first,
                                    int64_t step = 1) {
  float sum = 0.0f;
  for (int64_t i = first; i < C; i += Row<warps>::threads)
    sum += expf(to_float(x[i * step]) - maximum);
  return block_sum<warps>(sum);
}

/// Whether row n has a target. A target outside [0, V) is reported if `reports`, and counts as
/// ignored.
template <class Index>
__device__ inline bool has_target(const Index* targets, int64_t n, int64_t V, int64_t ignored,
                                  bool reports, FaultSite site, Fault* fault) {
  const int64_t target = targets[n];
  if (target == ignored) return false;
  if (target >= 0 && target < V) return true;
  if (reports) report(fault, site, n, target, V);
  return false;
}

/// Calls f(warps), an integral constant, for rows of C elements.
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
  return {blocks_for(N, row_warps * lanes / Row<warps>::threads), dim3(lanes * row_warps)};
}

}  // namespace zg::cuda

#include "zerograd/kernels/loss/cross_entropy.h"

#include "zerograd/kernels/cuda/rows.cuh"

namespace zg::cuda {
namespace {

// Cross-entropy of logits [N, V], a team of threads for each row (rows.cuh). Memory bound: forward
// reads a row twice, backward reads it and writes dlogits once.

/// loss[n] = log(sum_i exp(x_i)) - x_target, or 0 without a target.
template <class T, class Index, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    forward(const T* logits, const Index* targets, float* loss, float* log_sums, int64_t N,
            int64_t V, int64_t ignored, Fault* fault) {
  const Row<warps> row;
  if (row.n >= N) return;  // the whole team
  const T* const x = logits + row.n * V;
  const float maximum = row_max<warps>(x, V, row.first);
  const float log_sum = logf(row_exp_sum<warps>(x, maximum, V, row.first));
  if (row.first != 0) return;
  log_sums[row.n] = maximum + log_sum;
  // Subtract the two large terms first; adding log_sum, which is small, to one of them would round
  // it.
  loss[row.n] =
      has_target(targets, row.n, V, ignored, true, FaultSite::cross_entropy_forward_targets, fault)
          ? (maximum - to_float(x[targets[row.n]])) + log_sum
          : 0.0f;
}

/// dlogits[n, i] = (softmax(x)_i - (i == target)) * dloss[n], or 0 without a target.
template <class T, class Index, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    backward(const T* logits, const Index* targets, const float* log_sums, const float* dloss,
             T* dlogits, int64_t N, int64_t V, int64_t ignored, Fault* fault) {
  const Row<warps> row;
  if (row.n >= N) return;
  const bool is_counted = has_target(targets, row.n, V, ignored, row.first == 0,
                                     FaultSite::cross_entropy_backward_targets, fault);
  const int64_t target = targets[row.n];
  const float log_sum = log_sums[row.n], dloss_n = dloss[row.n];
  for (int64_t i = row.first; i < V; i += Row<warps>::threads) {
    const int64_t at = row.n * V + i;
    const float probability = expf(to_float(logits[at]) - log_sum);
    dlogits[at] = from_float<T>(
        is_counted ? (i == target ? probability - 1.0f : probability) * dloss_n : 0.0f);
  }
}

}  // namespace

void cross_entropy_forward(const CrossEntropyForward& a, Workspace, Stream& stream) {
  const int64_t N = a.logits.extent(0), V = a.logits.extent(1);
  visit_floating(a.logits.dtype(), [&]<class T>(T) {
    visit_index(a.targets.dtype(), [&]<class Index>(Index) {
      with_row_warps(V, [&](auto warps) {
        launch({"cross_entropy_forward", "forward", operand_bytes(a), N * V},
               forward<T, Index, decltype(warps)::value>, row_grid<decltype(warps)::value>(N),
               stream, static_cast<const T*>(a.logits.data<T>()),
               static_cast<const Index*>(a.targets.data<Index>()), a.loss.data<float>(),
               a.log_sum.data<float>(), N, V, a.ignore_index, fault_place(stream));
      });
    });
  });
}

void cross_entropy_backward(const CrossEntropyBackward& a, Workspace, Stream& stream) {
  const int64_t N = a.logits.extent(0), V = a.logits.extent(1);
  visit_floating(a.logits.dtype(), [&]<class T>(T) {
    visit_index(a.targets.dtype(), [&]<class Index>(Index) {
      with_row_warps(V, [&](auto warps) {
        launch({"cross_entropy_backward", "backward", operand_bytes(a), N * V},
               backward<T, Index, decltype(warps)::value>, row_grid<decltype(warps)::value>(N),
               stream, static_cast<const T*>(a.logits.data<T>()),
               static_cast<const Index*>(a.targets.data<Index>()),
               static_cast<const float*>(a.log_sum.data<float>()),
               static_cast<const float*>(a.dloss.data<float>()), a.dlogits.data<T>(), N, V,
               a.ignore_index, fault_place(stream));
      });
    });
  });
}

}  // namespace zg::cuda

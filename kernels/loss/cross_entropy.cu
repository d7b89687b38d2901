#include "zerograd/kernels/loss/cross_entropy.h"

#include "zerograd/kernels/cuda/rows.cuh"

namespace zg::cuda {
namespace {

template <class T, class Index, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    forward(const T* logits, const Index* targets, float* loss, float* log_sums, int64_t N,
            int64_t V, int64_t ignored, Fault* fault) {
  const Row<warps> row;
  if (row.n >= N) return;  // whole teams
  const T* const x = logits + row.n * V;
  const float best = row_max<warps>(x, V, row.first);
  const float log_sum = logf(row_exp_sum<warps>(x, best, V, row.first));
  if (row.first != 0) return;
  log_sums[row.n] = best + log_sum;
  // The difference of the two large terms first: log_sum is small.
  loss[row.n] = has_target(targets, row.n, V, ignored, true, "cross_entropy_forward", fault)
                    ? (best - to_float(x[targets[row.n]])) + log_sum
                    : 0.0f;
}

template <class T, class Index, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    backward(const T* logits, const Index* targets, const float* log_sums, const float* dloss,
             T* dlogits, int64_t N, int64_t V, int64_t ignored, Fault* fault) {
  const Row<warps> row;
  if (row.n >= N) return;
  const bool counts =
      has_target(targets, row.n, V, ignored, row.first == 0, "cross_entropy_backward", fault);
  const int64_t target = targets[row.n];
  const float log_sum = log_sums[row.n], slope = dloss[row.n];
  for (int64_t i = row.first; i < V; i += Row<warps>::threads) {
    const int64_t at = row.n * V + i;
    const float share = expf(to_float(logits[at]) - log_sum);
    dlogits[at] = from_float<T>(counts ? (i == target ? share - 1.0f : share) * slope : 0.0f);
  }
}

}  // namespace

void cross_entropy_forward(const CrossEntropyForward& a, Workspace, Stream& stream) {
  const int64_t N = a.logits.extent(0), V = a.logits.extent(1);
  visit_floating(a.logits.dtype(), [&]<class T>(T) {
    visit_index(a.targets.dtype(), [&]<class Index>(Index) {
      with_row_warps(V, [&](auto warps) {
        launch("cross_entropy_forward", forward<T, Index, decltype(warps)::value>,
               row_grid<decltype(warps)::value>(N), stream,
               static_cast<const T*>(a.logits.data<T>()),
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
        launch("cross_entropy_backward", backward<T, Index, decltype(warps)::value>,
               row_grid<decltype(warps)::value>(N), stream,
               static_cast<const T*>(a.logits.data<T>()),
               static_cast<const Index*>(a.targets.data<Index>()),
               static_cast<const float*>(a.log_sum.data<float>()),
               static_cast<const float*>(a.dloss.data<float>()), a.dlogits.data<T>(), N, V,
               a.ignore_index, fault_place(stream));
      });
    });
  });
}

}  // namespace zg::cuda

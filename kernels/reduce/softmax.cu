#include "zerograd/kernels/cuda/rows.cuh"
#include "zerograd/kernels/reduce/reduce.h"

namespace zg::cuda {
namespace {

// Softmax and log-softmax over the last axis, a team of threads for each row (rows.cuh). Memory
// bound: forward reads a row three times, the second and third time mostly from the cache.
template <class T, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    forward(const T* x_rows, T* y_rows, int64_t N, int64_t C, bool log) {
  const Row<warps> row;
  if (row.n >= N) return;  // the whole team
  const T* const x = x_rows + row.n * C;
  T* const y = y_rows + row.n * C;
  const float maximum = row_max<warps>(x, C, row.first);
  const float sum = row_exp_sum<warps>(x, maximum, C, row.first);
  const float scale = 1.0f / sum, log_sum = logf(sum);
  for (int64_t i = row.first; i < C; i += Row<warps>::threads) {
    const float shifted = to_float(x[i]) - maximum;
    y[i] = from_float<T>(log ? shifted - log_sum : expf(shifted) * scale);
  }
}

/// softmax: dx = y (dy - sum(dy y)). log-softmax: dx = dy - exp(y) sum(dy).
template <class T, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    backward(const T* y_rows, const T* dy_rows, T* dx_rows, int64_t N, int64_t C, bool log) {
  const Row<warps> row;
  if (row.n >= N) return;
  const T *const y = y_rows + row.n * C, *const dy = dy_rows + row.n * C;
  T* const dx = dx_rows + row.n * C;
  float total = 0.0f;
  for (int64_t i = row.first; i < C; i += Row<warps>::threads)
    total += log ? to_float(dy[i]) : to_float(dy[i]) * to_float(y[i]);
  const float sum = block_sum<warps>(total);
  for (int64_t i = row.first; i < C; i += Row<warps>::threads) {
    const float value = to_float(y[i]), slope = to_float(dy[i]);
    dx[i] = from_float<T>(log ? slope - expf(value) * sum : value * (slope - sum));
  }
}

int64_t rows_of(const Tensor& x) { return x.numel() == 0 ? 0 : x.numel() / x.extent(-1); }

}  // namespace

void softmax_forward(const SoftmaxForward& a, Workspace, Stream& stream) {
  const int64_t N = rows_of(a.x), C = a.x.extent(-1);
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    with_row_warps(C, [&](auto warps) {
      launch({"softmax_forward", "forward", operand_bytes(a), a.x.numel()},
             forward<T, decltype(warps)::value>, row_grid<decltype(warps)::value>(N), stream,
             static_cast<const T*>(a.x.data<T>()), a.y.data<T>(), N, C, a.log);
    });
  });
}

void softmax_backward(const SoftmaxBackward& a, Workspace, Stream& stream) {
  const int64_t N = rows_of(a.y), C = a.y.extent(-1);
  visit_floating(a.y.dtype(), [&]<class T>(T) {
    with_row_warps(C, [&](auto warps) {
      launch({"softmax_backward", "backward", operand_bytes(a), a.y.numel()},
             backward<T, decltype(warps)::value>, row_grid<decltype(warps)::value>(N), stream,
             static_cast<const T*>(a.y.data<T>()), static_cast<const T*>(a.dy.data<T>()),
             a.dx.data<T>(), N, C, a.log);
    });
  });
}

}  // namespace zg::cuda

#include "zerograd/kernels/cuda/rows.cuh"
#include "zerograd/kernels/movement/indexed.h"
#include "zerograd/kernels/reduce/reduce.h"

namespace zg::cuda {
namespace {

// Softmax and log-softmax along an axis, a team of threads for each row (rows.cuh), whose elements
// are `inner` apart. Memory bound: forward reads a row three times, the second and third time
// mostly from the cache.
__device__ inline int64_t begin_of(int64_t row, int64_t C, int64_t inner) {
  return row / inner * C * inner + row % inner;
}

template <class T, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    forward(const T* x_rows, T* y_rows, int64_t N, int64_t C, int64_t inner, bool log) {
  const Row<warps> row;
  if (row.n >= N) return;  // the whole team
  const int64_t begin = begin_of(row.n, C, inner);
  const T* const x = x_rows + begin;
  T* const y = y_rows + begin;
  const float maximum = row_max<warps>(x, C, row.first, inner);
  const float sum = row_exp_sum<warps>(x, maximum, C, row.first, inner);
  const float scale = 1.0f / sum, log_sum = logf(sum);
  for (int64_t i = row.first; i < C; i += Row<warps>::threads) {
    const float shifted = to_float(x[i * inner]) - maximum;
    y[i * inner] = from_float<T>(log ? shifted - log_sum : expf(shifted) * scale);
  }
}

/// softmax: dx = y (dy - sum(dy y)). log-softmax: dx = dy - exp(y) sum(dy).
template <class T, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    backward(const T* y_rows, const T* dy_rows, T* dx_rows, int64_t N, int64_t C, int64_t inner,
             bool log) {
  const Row<warps> row;
  if (row.n >= N) return;
  const int64_t begin = begin_of(row.n, C, inner);
  const T *const y = y_rows + begin, *const dy = dy_rows + begin;
  T* const dx = dx_rows + begin;
  float total = 0.0f;
  for (int64_t i = row.first; i < C; i += Row<warps>::threads)
    total += log ? to_float(dy[i * inner]) : to_float(dy[i * inner]) * to_float(y[i * inner]);
  const float sum = block_sum<warps>(total);
  for (int64_t i = row.first; i < C; i += Row<warps>::threads) {
    const float value = to_float(y[i * inner]), slope = to_float(dy[i * inner]);
    dx[i * inner] = from_float<T>(log ? slope - expf(value) * sum : value * (slope - sum));
  }
}

/// Calls f(warps, at, N) for the N rows of x along an axis. Where neighbouring rows are neighbours
/// in memory and there are many of them, a thread takes one.
template <class F>
void with_rows(const Tensor& x, int axis, const F& f) {
  constexpr int64_t enough_threads = 1 << 13;
  const Indexed at = Indexed::split(x.shape(), axis);
  const int64_t N = at.extent == 0 ? 0 : at.outer * at.inner;
  if (at.inner >= lanes && N >= enough_threads) return f(std::integral_constant<int, 0>(), at, N);
  with_row_warps(at.extent, [&](auto warps) { f(warps, at, N); });
}

}  // namespace

void softmax_forward(const SoftmaxForward& a, Workspace, Stream& stream) {
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    with_rows(a.x, a.axis, [&](auto warps, const Indexed& at, int64_t N) {
      launch({"softmax_forward", "forward", operand_bytes(a), a.x.numel()},
             forward<T, decltype(warps)::value>, row_grid<decltype(warps)::value>(N), stream,
             static_cast<const T*>(a.x.data<T>()), a.y.data<T>(), N, at.extent, at.inner, a.log);
    });
  });
}

void softmax_backward(const SoftmaxBackward& a, Workspace, Stream& stream) {
  visit_floating(a.y.dtype(), [&]<class T>(T) {
    with_rows(a.y, a.axis, [&](auto warps, const Indexed& at, int64_t N) {
      launch({"softmax_backward", "backward", operand_bytes(a), a.y.numel()},
             backward<T, decltype(warps)::value>, row_grid<decltype(warps)::value>(N), stream,
             static_cast<const T*>(a.y.data<T>()), static_cast<const T*>(a.dy.data<T>()),
             a.dx.data<T>(), N, at.extent, at.inner, a.log);
    });
  });
}

}  // namespace zg::cuda

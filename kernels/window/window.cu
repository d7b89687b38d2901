#include "zerograd/kernels/cuda/launch.h"
#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/kernels/window/window.h"

namespace zg::cuda {
namespace {

constexpr int threads = 256;

/// The row (column) of x for place u of row (column) i of y; -1: none.
__device__ inline int64_t source(const WindowAxis& axis, int transposed, int64_t i, int64_t u,
                                 int64_t extent) {
  int64_t at = i * axis.stride + u * axis.dilation - axis.before;
  if (transposed) {
    at = i + axis.before - u * axis.dilation;
    at = at >= 0 && at % axis.stride == 0 ? at / axis.stride : -1;
  }
  return at < extent ? at : -1;
}

/// One thread for each element of y, which sums its places in rising order.
template <class T>
__global__ void __launch_bounds__(threads)
    sum_windows(const T* x, const T* weight, const T* bias, T* y, Planes n, WindowAxis rows,
                WindowAxis columns, int transposed, float divisor, int64_t numel) {
  const int64_t index = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (index >= numel) return;
  const int64_t j = index % n.y_columns, row = index / n.y_columns;
  const int64_t i = row % n.y_rows, plane = row / n.y_rows, channel = plane % n.channels;
  x += plane / n.channels * n.sample + channel * n.channel;
  if (weight) weight += channel * rows.size * columns.size;
  float sum = bias ? to_float(bias[channel]) : 0.0f;
  for (int64_t u = 0; u < rows.size; ++u) {
    const int64_t from = source(rows, transposed, i, u, n.x_rows);
    if (from < 0) continue;
    for (int64_t v = 0; v < columns.size; ++v) {
      const int64_t at = source(columns, transposed, j, v, n.x_columns);
      if (at < 0) continue;
      const int64_t place = u * columns.size + v;
      const float value = to_float(x[place * n.place + from * n.x_columns + at]);
      sum += weight ? to_float(weight[place]) * value : value;
    }
  }
  y[index] = from_float<T>(sum / divisor);
}

}  // namespace

void window_sum(const WindowSum& a, Workspace, Stream& stream) {
  const int64_t numel = a.y.numel();
  visit_floating(a.y.dtype(), [&]<class T>(T) {
    launch({"window_sum", "sum_windows", operand_bytes(a), numel}, sum_windows<T>,
           {blocks_for(numel, threads), dim3(threads)}, stream,
           static_cast<const T*>(a.x.data<T>()),
           static_cast<const T*>(a.weight ? a.weight.data<T>() : nullptr),
           static_cast<const T*>(a.bias ? a.bias.data<T>() : nullptr), a.y.data<T>(), Planes(a),
           a.window[0], a.window[1], a.transposed ? 1 : 0, static_cast<float>(a.divisor), numel);
  });
}

}  // namespace zg::cuda

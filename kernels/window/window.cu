#include <math_constants.h>

#include "zerograd/kernels/cuda/launch.h"
#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/kernels/window/window.h"

namespace zg::cuda {
namespace {

constexpr int threads = 256;

/// The row (column) of x for place u of row (column) i of y; -1: none.
__device__ inline int64_t source(const WindowAxis& axis, bool transposed, int64_t i, int64_t u,
                                 int64_t extent) {
  int64_t at = i * axis.stride + u * axis.dilation - axis.before;
  if (transposed) {
    at = i + axis.before - u * axis.dilation;
    at = at >= 0 && at % axis.stride == 0 ? at / axis.stride : -1;
  }
  return at < extent ? at : -1;
}

/// One thread for each element of y, which sums its places in rising order. For the largest element
/// they fall, so that the first of equal ones is the last to replace another.
template <class T, bool largest>
__global__ void __launch_bounds__(threads)
    reduce_windows(const T* x, const T* weight, const T* bias, T* y, int* places, Planes n,
                   WindowAxis rows, WindowAxis columns, bool transposed, float divisor,
                   int64_t numel) {
  const int64_t index = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (index >= numel) return;
  const int64_t j = index % n.y_columns, row = index / n.y_columns;
  const int64_t i = row % n.y_rows, plane = row / n.y_rows, channel = plane % n.channels;
  const int64_t offset = plane / n.channels * n.sample + channel * n.channel;
  if (weight) weight += channel * rows.size * columns.size;
  float sum = largest ? -CUDART_INF_F : bias ? to_float(bias[channel]) : 0.0f;
  int found = 0;
  for (int64_t p = 0; p < rows.size; ++p) {
    const int64_t u = largest ? rows.size - 1 - p : p;
    const int64_t from = source(rows, transposed, i, u, n.x_rows);
    if (from < 0) continue;
    for (int64_t q = 0; q < columns.size; ++q) {
      const int64_t v = largest ? columns.size - 1 - q : q;
      const int64_t at = source(columns, transposed, j, v, n.x_columns);
      if (at < 0) continue;
      const int64_t place = u * columns.size + v;
      const int64_t element = offset + place * n.place + from * n.x_columns + at;
      if (!largest && places && places[element] != place) continue;
      const float value = to_float(x[element]);
      if (!largest) {
        sum += weight ? to_float(weight[place]) * value : value;
      } else if (value >= sum || value != value) {
        sum = value;
        found = static_cast<int>(place);
      }
    }
  }
  y[index] = from_float<T>(sum / divisor);
  if (largest) places[index] = found;
}

}  // namespace

void window_reduce(const WindowReduce& a, Workspace, Stream& stream) {
  const int64_t numel = a.y.numel();
  visit_floating(a.y.dtype(), [&]<class T>(T) {
    launch({"window_reduce", "reduce_windows", operand_bytes(a), numel},
           a.largest ? reduce_windows<T, true> : reduce_windows<T, false>,
           {blocks_for(numel, threads), dim3(threads)}, stream,
           static_cast<const T*>(a.x.data<T>()),
           static_cast<const T*>(a.weight ? a.weight.data<T>() : nullptr),
           static_cast<const T*>(a.bias ? a.bias.data<T>() : nullptr), a.y.data<T>(),
           a.places ? a.places.data<int32_t>() : nullptr, Planes(a), a.window[0], a.window[1],
           a.transposed, static_cast<float>(a.divisor), numel);
  });
}

}  // namespace zg::cuda

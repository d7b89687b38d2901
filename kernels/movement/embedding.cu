#include "zerograd/kernels/movement/movement.h"

#include "zerograd/kernels/cuda/tile.cuh"

namespace zg::cuda {
namespace {

constexpr int threads = 128;

/// A block a token; an id that is outside is reported and read as 0.
template <class T, class Id>
__global__ void __launch_bounds__(threads)
    gather_rows(const Id* ids, const T* weight, const T* position, T* y, int64_t V, int64_t C,
                int64_t period, int64_t first_position, Fault* fault) {
  const int64_t n = blockIdx.x;
  int64_t id = ids[n];
  if (id < 0 || id >= V) {
    if (threadIdx.x == 0) report(fault, "embedding_forward", "ids", n, id, V);
    id = 0;
  }
  const T* const row = weight + id * C;
  const T* const added = position ? position + (first_position + n % period) * C : nullptr;
  for (int64_t c = threadIdx.x; c < C; c += threads)
    y[n * C + c] = added ? from_float<T>(to_float(row[c]) + to_float(added[c])) : row[c];
}

/// The block of the first token of an id sums the rows of all of that id's, in rising n: no order
/// is left open, and nothing is sorted. Others find an equal id before theirs and leave. Blocks
/// along y share the columns.
template <class T, class Id>
__global__ void __launch_bounds__(threads)
    sum_rows_by_id(const Id* ids, const T* dy, float* dweight, int64_t N, int64_t V, int64_t C,
                   Fault* fault) {
  __shared__ unsigned equal[threads / lanes];
  const int64_t n = blockIdx.x, id = ids[n];
  if (id < 0 || id >= V) {
    if (threadIdx.x == 0) report(fault, "embedding_backward", "ids", n, id, V);
    return;
  }
  const int64_t c = int64_t{blockIdx.y} * threads + threadIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / lanes;
  for (int64_t begin = 0; begin < n; begin += threads) {
    const int64_t m = begin + threadIdx.x;
    const unsigned found = __ballot_sync(all_lanes, m < n && ids[m] == id);
    if (threadIdx.x % lanes == 0) equal[warp] = found;
    __syncthreads();
    unsigned any = 0;
    for (int w = 0; w < threads / lanes; ++w) any |= equal[w];
    if (any) return;  // for the whole block
    __syncthreads();
  }
  float sum = c < C ? to_float(dy[n * C + c]) : 0.0f;
  for (int64_t begin = n + 1; begin < N; begin += threads) {
    const int64_t m = begin + threadIdx.x;
    const unsigned found = __ballot_sync(all_lanes, m < N && ids[m] == id);
    if (threadIdx.x % lanes == 0) equal[warp] = found;
    __syncthreads();
    for (int w = 0; w < threads / lanes; ++w)
      for (unsigned rest = equal[w]; rest; rest &= rest - 1) {
        const int64_t token = begin + w * lanes + __ffs(static_cast<int>(rest)) - 1;
        if (c < C) sum += to_float(dy[token * C + c]);
      }
    __syncthreads();
  }
  if (c < C) dweight[id * C + c] = sum;
}

/// A block a position.
template <class T>
__global__ void __launch_bounds__(threads)
    sum_rows_by_position(const T* dy, float* dposition, int64_t N, int64_t C, int64_t period,
                         int64_t first_position) {
  const int64_t t = int64_t{blockIdx.x} - first_position;
  for (int64_t c = threadIdx.x; c < C; c += threads) {
    float sum = 0.0f;
    if (t >= 0 && t < period)
      for (int64_t n = t; n < N; n += period) sum += to_float(dy[n * C + c]);
    dposition[int64_t{blockIdx.x} * C + c] = sum;
  }
}

}  // namespace

void embedding_forward(const EmbeddingForward& a, Workspace, Stream& stream) {
  const int64_t N = a.y.extent(0), C = a.y.extent(1);
  visit_floating(a.y.dtype(), [&]<class T>(T) {
    visit_index(a.ids.dtype(), [&]<class Id>(Id) {
      launch("embedding_forward", gather_rows<T, Id>,
             {dim3(static_cast<unsigned>(N)), dim3(threads)}, stream,
             static_cast<const Id*>(a.ids.data<Id>()), static_cast<const T*>(a.weight.data<T>()),
             static_cast<const T*>(a.position ? a.position.data<T>() : nullptr), a.y.data<T>(),
             a.weight.extent(0), C, a.position ? a.T : 1, a.first_position, fault_place(stream));
    });
  });
}

void embedding_backward(const EmbeddingBackward& a, Workspace, Stream& stream) {
  const int64_t N = a.dy.extent(0), C = a.dy.extent(1);
  const auto rows = static_cast<unsigned>(N);
  visit_floating(a.dy.dtype(), [&]<class T>(T) {
    const T* dy = a.dy.data<T>();
    if (a.dweight) {
      fill_zero(a.dweight, stream);  // ids without tokens get zero
      visit_index(a.ids.dtype(), [&]<class Id>(Id) {
        launch("embedding_backward", sum_rows_by_id<T, Id>,
               {dim3(rows, blocks_for(C, threads).x), dim3(threads)}, stream,
               static_cast<const Id*>(a.ids.data<Id>()), dy, a.dweight.data<float>(), N,
               a.dweight.extent(0), C, fault_place(stream));
      });
    }
    if (a.dposition)
      launch("embedding_backward", sum_rows_by_position<T>,
             {dim3(static_cast<unsigned>(a.dposition.extent(0))), dim3(threads)}, stream, dy,
             a.dposition.data<float>(), N, C, a.T, a.first_position);
  });
}

}  // namespace zg::cuda

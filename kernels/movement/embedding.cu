#include "zerograd/kernels/movement/movement.h"

#include "zerograd/kernels/cuda/tile.cuh"

namespace zg::cuda {
namespace {

constexpr int threads = 128;

/// y[n] = weight[ids[n]] (+ position[first_position + n % period]), one block for each token n and
/// `width` columns at once for each thread. An id outside [0, V) is reported and read as 0.
template <class T, class Id, int width>
__global__ void __launch_bounds__(threads)
    gather_rows(const Id* ids, const T* weight, const T* position, T* y, int64_t V, int64_t C,
                int64_t period, int64_t first_position, Fault* fault) {
  const int64_t n = blockIdx.x;
  int64_t id = ids[n];
  if (id < 0 || id >= V) {
    if (threadIdx.x == 0) report(fault, FaultSite::embedding_forward_ids, n, id, V);
    id = 0;
  }
  const T* const row = weight + id * C;
  const T* const position_row = position ? position + (first_position + n % period) * C : nullptr;
  for (int64_t c = int64_t{threadIdx.x} * width; c < C; c += threads * width) {
    auto values = load<width>(row + c);
    if (position_row) {
      const auto added = load<width>(position_row + c);
#pragma unroll
      for (int k = 0; k < width; ++k)
        values.v[k] = from_float<T>(to_float(values.v[k]) + to_float(added.v[k]));
    }
    store(y + n * C + c, values);
  }
}

/// sums += the `width` columns from `row` on.
template <class T, int width>
__device__ inline void add_columns(Vec<float, width>& sums, const T* row) {
  const auto values = load<width>(row);
#pragma unroll
  for (int k = 0; k < width; ++k) sums.v[k] += to_float(values.v[k]);
}

/// dweight[id] = sum of dy[n] over the tokens n with that id, in rising n, so the bits are fixed.
/// One block for each token n and 128 times `width` columns (blockIdx.y). A block returns if an
/// earlier token has the same id; otherwise it searches the later tokens for its id and adds their
/// rows.
template <class T, class Id, int width>
__global__ void __launch_bounds__(threads)
    sum_rows_by_id(const Id* ids, const T* dy, float* dweight, int64_t N, int64_t V, int64_t C,
                   Fault* fault) {
  __shared__ unsigned matches[threads / lanes];
  const int64_t n = blockIdx.x, id = ids[n];
  if (id < 0 || id >= V) {
    if (threadIdx.x == 0) report(fault, FaultSite::embedding_backward_ids, n, id, V);
    return;
  }
  const int64_t c = (int64_t{blockIdx.y} * threads + threadIdx.x) * width;
  const int warp = static_cast<int>(threadIdx.x) / lanes;
  for (int64_t begin = 0; begin < n; begin += threads) {
    const int64_t m = begin + threadIdx.x;
    const unsigned match_mask = __ballot_sync(all_lanes, m < n && ids[m] == id);
    if (threadIdx.x % lanes == 0) matches[warp] = match_mask;
    __syncthreads();
    unsigned has_earlier = 0;
    for (int w = 0; w < threads / lanes; ++w) has_earlier |= matches[w];
    if (has_earlier) return;  // all threads of the block together
    __syncthreads();
  }
  Vec<float, width> sums = {};
  if (c < C) {
    const auto values = load<width>(dy + n * C + c);
#pragma unroll
    for (int k = 0; k < width; ++k) sums.v[k] = to_float(values.v[k]);
  }
  for (int64_t begin = n + 1; begin < N; begin += threads) {
    const int64_t m = begin + threadIdx.x;
    const unsigned match_mask = __ballot_sync(all_lanes, m < N && ids[m] == id);
    if (threadIdx.x % lanes == 0) matches[warp] = match_mask;
    __syncthreads();
    for (int w = 0; w < threads / lanes; ++w)
      for (unsigned rest = matches[w]; rest; rest &= rest - 1) {
        const int64_t token = begin + w * lanes + __ffs(static_cast<int>(rest)) - 1;
        if (c < C) add_columns(sums, dy + token * C + c);
      }
    __syncthreads();
  }
  if (c < C) store(dweight + id * C + c, sums);
}

/// dposition[p] = sum of dy[n] over the tokens n at position p, one block for each position and
/// `width` columns at once for each thread.
template <class T, int width>
__global__ void __launch_bounds__(threads)
    sum_rows_by_position(const T* dy, float* dposition, int64_t N, int64_t C, int64_t period,
                         int64_t first_position) {
  const int64_t t = int64_t{blockIdx.x} - first_position;
  for (int64_t c = int64_t{threadIdx.x} * width; c < C; c += threads * width) {
    Vec<float, width> sums = {};
    if (t >= 0 && t < period)
      for (int64_t n = t; n < N; n += period) add_columns(sums, dy + n * C + c);
    store(dposition + int64_t{blockIdx.x} * C + c, sums);
  }
}

/// Calls f(width), an integral constant: the columns that a thread handles at once.
template <class T, class F>
void with_width(bool vectors, const F& f) {
  if (vectors)
    f(std::integral_constant<int, vector_width<T>>());
  else
    f(std::integral_constant<int, 1>());
}

}  // namespace

void embedding_forward(const EmbeddingForward& a, Workspace, Stream& stream) {
  const int64_t N = a.y.extent(0), C = a.y.extent(1);
  visit_floating(a.y.dtype(), [&]<class T>(T) {
    const T* weight = a.weight.data<T>();
    const T* position = a.position ? a.position.data<T>() : nullptr;
    T* y = a.y.data<T>();
    const bool vectors =
        takes_vectors(weight, C) && takes_vectors(position, C) && takes_vectors(y, C);
    visit_index(a.ids.dtype(), [&]<class Id>(Id) {
      with_width<T>(vectors, [&](auto width) {
        launch({"embedding_forward", "gather_rows",
                a.ids.bytes() + (position ? 3 : 2) * a.y.bytes(), a.y.numel()},
               gather_rows<T, Id, decltype(width)::value>,
               {dim3(static_cast<unsigned>(N)), dim3(threads)}, stream,
               static_cast<const Id*>(a.ids.data<Id>()), weight, position, y, a.weight.extent(0), C,
               a.position ? a.T : 1, a.first_position, fault_place(stream));
      });
    });
  });
}

void embedding_backward(const EmbeddingBackward& a, Workspace, Stream& stream) {
  const int64_t N = a.dy.extent(0), C = a.dy.extent(1);
  const auto rows = static_cast<unsigned>(N);
  visit_floating(a.dy.dtype(), [&]<class T>(T) {
    const T* dy = a.dy.data<T>();
    if (a.dweight) {
      fill_zero(a.dweight, stream);  // for ids that no token has
      float* dweight = a.dweight.data<float>();
      const bool vectors = takes_vectors(dy, C) && takes_vectors(dweight, C);
      visit_index(a.ids.dtype(), [&]<class Id>(Id) {
        with_width<T>(vectors, [&](auto width) {
          launch({"embedding_backward", "sum_rows_by_id", bytes_of({&a.ids, &a.dy, &a.dweight}),
                  a.dy.numel()},
                 sum_rows_by_id<T, Id, decltype(width)::value>,
                 {dim3(rows, blocks_for(C, threads * width).x), dim3(threads)}, stream,
                 static_cast<const Id*>(a.ids.data<Id>()), dy, dweight, N, a.dweight.extent(0), C,
                 fault_place(stream));
        });
      });
    }
    if (a.dposition) {
      float* dposition = a.dposition.data<float>();
      const bool vectors = takes_vectors(dy, C) && takes_vectors(dposition, C);
      with_width<T>(vectors, [&](auto width) {
        launch({"embedding_backward", "sum_rows_by_position", bytes_of({&a.dy, &a.dposition}),
                a.dy.numel()},
               sum_rows_by_position<T, decltype(width)::value>,
               {dim3(static_cast<unsigned>(a.dposition.extent(0))), dim3(threads)}, stream, dy,
               dposition, N, C, a.T, a.first_position);
      });
    }
  });
}

}  // namespace zg::cuda

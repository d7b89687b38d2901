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

// dweight[id] = sum of dy[n] over the tokens n with that id. It adds in rising n, so the bits do
// not depend on the order of the threads. Tokens are cut into tiles, each of which sort_tile sorts
// by id; a block of sum_rows_by_id has one id and searches every tile for it.
constexpr int tile_bits = 11, tile_tokens = 1 << tile_bits;
constexpr int sort_threads = tile_tokens / 2;

/// keys[n] of a tile = id << tile_bits | place in the tile, rising; one block for each tile, one
/// thread for a pair that is compared. A bitonic sort in shared memory (Batcher 1968): keys differ,
/// so every sort gives the same order. An id outside [0, V) is reported and sorted behind the
/// others.
template <class Id>
__global__ void __launch_bounds__(sort_threads)
    sort_tile(const Id* ids, uint64_t* keys, int64_t N, int64_t V, Fault* fault) {
  __shared__ uint64_t tile[tile_tokens];
  const int64_t begin = int64_t{blockIdx.x} * tile_tokens;
  const int count = static_cast<int>(N - begin < tile_tokens ? N - begin : tile_tokens);
  int size = 1;  // of the sort: a power of 2
  while (size < count) size *= 2;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < size; i += sort_threads) {
    int64_t id = i < count ? int64_t{ids[begin + i]} : V;
    if (i < count && (id < 0 || id >= V)) {
      report(fault, FaultSite::embedding_backward_ids, begin + i, id, V);
      id = V;
    }
    tile[i] = static_cast<uint64_t>(id) << tile_bits | static_cast<uint64_t>(i);
  }
  for (int length = 2; length <= size; length *= 2)
    for (int distance = length / 2; distance > 0; distance /= 2) {
      __syncthreads();
      if (thread >= size / 2) continue;
      const int low = (thread & -distance) * 2 + (thread & (distance - 1)), high = low + distance;
      const uint64_t a = tile[low], b = tile[high];
      const bool rises = (low & length) == 0;
      if ((a > b) != rises) continue;
      tile[low] = b;
      tile[high] = a;
    }
  __syncthreads();
  for (int i = thread; i < count; i += sort_threads) keys[begin + i] = tile[i];
}

/// The number of keys below `key`; they rise.
__device__ inline int keys_below(const uint64_t* keys, int count, uint64_t key) {
  int below = 0;
  while (count > 0) {
    const int half = count / 2;
    const bool right = keys[below + half] < key;
    below = right ? below + half + 1 : below;
    count = right ? count - half - 1 : half;
  }
  return below;
}

/// sums += the `width` columns from `row` on.
template <class T, int width>
__device__ inline void add_columns(Vec<float, width>& sums, const T* row) {
  const auto values = load<width>(row);
#pragma unroll
  for (int k = 0; k < width; ++k) sums.v[k] += to_float(values.v[k]);
}

/// One block for each id and 128 times `width` columns (blockIdx.y); ids that no token has get 0.
/// Each lane of a warp searches one tile; then the warp reads the tiles that have the id in order.
template <class T, int width>
__global__ void __launch_bounds__(threads)
    sum_rows_by_id(const uint64_t* keys, const T* dy, float* dweight, int64_t N, int64_t C,
                   bool adds) {
  constexpr int batch = 8;  // rows whose loads are in flight at a time
  const auto first = static_cast<uint64_t>(blockIdx.x) << tile_bits;
  const uint64_t end = first + tile_tokens;
  const int64_t c = (int64_t{blockIdx.y} * threads + threadIdx.x) * width;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  Vec<float, width> sums = {};
  for (int64_t searched = 0; searched < N; searched += lanes * tile_tokens) {
    const int64_t own = searched + lane * tile_tokens, left = own < N ? N - own : 0;
    const int count = static_cast<int>(left < tile_tokens ? left : tile_tokens);
    const int own_at = keys_below(keys + own, count, first);
    const bool has_id = own_at < count && keys[own + own_at] < end;
    for (unsigned found = __ballot_sync(all_lanes, has_id); found; found &= found - 1) {
      const int from = __ffs(static_cast<int>(found)) - 1;
      const int64_t begin = searched + from * tile_tokens;
      const int tokens = __shfl_sync(all_lanes, count, from);
      int at = __shfl_sync(all_lanes, own_at, from), rows = lanes;
      for (; rows == lanes; at += lanes) {
        const uint64_t key = at + lane < tokens ? keys[begin + at + lane] : end;
        rows = __popc(__ballot_sync(all_lanes, key < end));
        for (int i = 0; i < rows; i += batch) {
          Vec<T, width> values[batch];
#pragma unroll
          for (int k = 0; k < batch; ++k) {
            const auto token = static_cast<int>(key - first);
            const int64_t n = begin + __shfl_sync(all_lanes, token, (i + k) % lanes);
            if (i + k < rows && c < C) values[k] = load<width>(dy + n * C + c);
          }
#pragma unroll
          for (int k = 0; k < batch; ++k)
            if (i + k < rows && c < C)
#pragma unroll
              for (int j = 0; j < width; ++j) sums.v[j] += to_float(values[k].v[j]);
        }
      }
    }
  }
  if (c >= C) return;
  if (adds) add_columns(sums, dweight + blockIdx.x * C + c);
  store(dweight + blockIdx.x * C + c, sums);
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

void embedding_backward(const EmbeddingBackward& a, Workspace workspace, Stream& stream) {
  const int64_t N = a.dy.extent(0), C = a.dy.extent(1);
  visit_floating(a.dy.dtype(), [&]<class T>(T) {
    const T* dy = a.dy.data<T>();
    if (a.dweight) {
      const int64_t V = a.dweight.extent(0);
      float* dweight = a.dweight.data<float>();
      auto* keys = reinterpret_cast<uint64_t*>(workspace.data);
      visit_index(a.ids.dtype(), [&]<class Id>(Id) {
        launch({"embedding_backward", "sort_tile", a.ids.bytes() + workspace.bytes, N},
               sort_tile<Id>, {blocks_for(N, tile_tokens), dim3(sort_threads)}, stream,
               static_cast<const Id*>(a.ids.data<Id>()), keys, N, V, fault_place(stream));
      });
      const bool vectors = takes_vectors(dy, C) && takes_vectors(dweight, C);
      with_width<T>(vectors, [&](auto width) {
        launch({"embedding_backward", "sum_rows_by_id",
                workspace.bytes + bytes_of({&a.dy, &a.dweight}) + (a.adds ? a.dweight.bytes() : 0),
                a.dweight.numel()},
               sum_rows_by_id<T, decltype(width)::value>,
               {dim3(static_cast<unsigned>(V), blocks_for(C, threads * width).x), dim3(threads)},
               stream, static_cast<const uint64_t*>(keys), dy, dweight, N, C, a.adds);
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

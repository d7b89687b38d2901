#include "zerograd/kernels/attention/rope.h"

#include "zerograd/kernels/cuda/tile.cuh"

// Memory bound: one read and one write of x. A thread turns V pairs of one head; a vector has at
// most 16 bytes. The table's row of a token stays in the cache for its heads.
namespace zg::cuda {
namespace {

constexpr int threads = 256;

template <class T>
struct Call {
  const T* x;
  T* y;
  const float* table;
  const int32_t* positions;  ///< null: first_position + t
  int64_t tokens_of_sample, rows, first_position;
  int heads, D, rotated;
  float sign;  ///< of the sine: -1 in backward
  Fault* fault;
};

template <int V, class T>
__global__ void __launch_bounds__(threads) rotate(Call<T> a, int64_t items) {
  const int64_t item = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (item >= items) return;
  const int half = a.rotated / 2, rest = (a.D - a.rotated + 1) / 2;
  const int per_head = (half + rest) / V;  // vectors of pairs, then of the elements that stay
  const int64_t head = item / per_head, token = head / a.heads;
  const int i = static_cast<int>(item - head * per_head) * V;
  const T* const x = a.x + head * a.D;
  T* const y = a.y + head * a.D;
  if (i >= half) {
    const int d = a.rotated + 2 * (i - half);
    for (int k = d; k < d + 2 * V && k < a.D; ++k) y[k] = x[k];
    return;
  }
  int64_t position =
      a.positions ? a.positions[token] : a.first_position + token % a.tokens_of_sample;
  if (position < 0 || position >= a.rows) {
    report(a.fault, FaultSite::rope_positions, token, position, a.rows);
    position = 0;
  }
  const float* const row = a.table + position * a.rotated;
  const Vec<T, V> first = load<V>(x + i), second = load<V>(x + half + i);
  Vec<T, V> turned_first, turned_second;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const float cosine = row[i + k], sine = row[half + i + k] * a.sign;
    const float u = to_float(first.v[k]), v = to_float(second.v[k]);
    turned_first.v[k] = from_float<T>(u * cosine - v * sine);
    turned_second.v[k] = from_float<T>(v * cosine + u * sine);
  }
  store(y + i, turned_first);
  store(y + half + i, turned_second);
}

}  // namespace

void rope(const Rope& a, Workspace, Stream& stream) {
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    const int64_t C = a.x.extent(2), tokens = a.x.extent(0) * a.x.extent(1);
    const Call<T> call{.x = a.x.data<T>(),
                       .y = a.y.data<T>(),
                       .table = a.table.data<float>(),
                       .positions = a.positions ? a.positions.data<int32_t>() : nullptr,
                       .tokens_of_sample = a.x.extent(1),
                       .rows = a.table.extent(0),
                       .first_position = a.first_position,
                       .heads = static_cast<int>(a.heads),
                       .D = static_cast<int>(C / a.heads),
                       .rotated = static_cast<int>(a.table.extent(1)),
                       .sign = a.backward ? -1.0f : 1.0f,
                       .fault = fault_place(stream)};
    constexpr int V = vector_width<T>;
    const int half = call.rotated / 2, rest = (call.D - call.rotated + 1) / 2;
    const auto aligned = [](const T* start) {
      return reinterpret_cast<uintptr_t>(start) % 16 == 0;
    };
    const bool vectors =
        half % V == 0 && rest % V == 0 && call.D % V == 0 && aligned(call.x) && aligned(call.y);
    const Work work("rope", "rotate", bytes_of({&a.x, &a.y, &a.table, &a.positions}), a.x.numel());
    const int64_t items = tokens * a.heads * (half + rest) / (vectors ? V : 1);
    if (vectors)
      launch(work, rotate<V, T>, {blocks_for(items, threads), dim3(threads)}, stream, call, items);
    else
      launch(work, rotate<1, T>, {blocks_for(items, threads), dim3(threads)}, stream, call, items);
  });
}

}  // namespace zg::cuda

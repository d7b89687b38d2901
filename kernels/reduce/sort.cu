#include "zerograd/kernels/reduce/numbers.cuh"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/kernels/reduce/reduce_chunks.h"

namespace zg::cuda {
namespace {

// A bitonic network (Batcher 1968) sorts items: a key, in whose order as an unsigned number the
// elements come, and the element's place in its row. Items differ, so the order is the only one.
constexpr int threads = 256, tile_items = static_cast<int>(SortedRows::tile);

struct WideItem {
  uint64_t key, place;
};
template <class T>
using ItemOf = std::conditional_t<sizeof(T) == 8, WideItem, uint64_t>;

__device__ inline bool follows(uint64_t a, uint64_t b) { return a > b; }
__device__ inline bool follows(WideItem a, WideItem b) {
  return a.key != b.key ? a.key > b.key : a.place > b.place;
}
__device__ inline int64_t place_of(uint64_t item) {
  return static_cast<int64_t>(item & 0xffffffffu);
}
__device__ inline int64_t place_of(WideItem item) { return static_cast<int64_t>(item.place); }

/// Padding comes behind every element: its place is beyond the row.
__device__ inline void set_padding(uint64_t& item, uint64_t place) {
  item = uint64_t{0xffffffffu} << 32 | place;
}
__device__ inline void set_padding(WideItem& item, uint64_t place) { item = {~uint64_t{0}, place}; }

template <class T>
__device__ inline void set_item(ItemOf<T>& item, T x, uint64_t place, bool descending) {
  if constexpr (sizeof(T) == 8) {
    const uint64_t key = static_cast<uint64_t>(x) ^ uint64_t { 1 } << 63;
    item = {descending ? ~key : key, place};
  } else {
    unsigned key;
    if constexpr (std::is_integral_v<T>) {
      key = static_cast<unsigned>(x) ^ 0x80000000u;
    } else {
      const float value = to_float(x);
      const unsigned bits = value == 0.0f ? 0u : __float_as_uint(value);  // -0 and 0 are equal
      key = value != value ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
    }
    item = uint64_t{descending ? ~key : key} << 32 | place;
  }
}

/// Brings the items at `low` and behind it in order, in a step of the network that merges sequences
/// of length / 2.
template <class Item>
__device__ inline void exchange_pair(Item& a, Item& b, int64_t low, int64_t segment,
                                     int64_t length) {
  const bool rises = (low & (segment - 1) & length) == 0;
  if (follows(a, b) != rises) return;
  const Item first = a;
  a = b;
  b = first;
}

/// One block for each tile.
template <class T>
__global__ void __launch_bounds__(threads)
    sort_tiles(const T* x, ItemOf<T>* items, int64_t* y, SortedRows n, SortPass pass,
               bool descending) {
  __shared__ ItemOf<T> tile[tile_items];
  const int64_t begin = int64_t{blockIdx.x} * tile_items;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < tile_items; i += threads) {
    const int64_t row = (begin + i) / pass.size, place = (begin + i) % pass.size;
    if (row < n.rows && pass.from >= 0)
      tile[i] = items[pass.from + begin + i];
    else if (row < n.rows && place < n.extent)
      set_item<T>(tile[i], x[(row / n.inner * n.extent + place) * n.inner + row % n.inner],
                  static_cast<uint64_t>(place), descending);
    else
      set_padding(tile[i], static_cast<uint64_t>(place));
  }
  for (int64_t length = pass.first; length <= pass.last; length *= 2)
    for (int distance = static_cast<int>(min(length, int64_t{tile_items})) / 2; distance > 0;
         distance /= 2) {
      __syncthreads();
      for (int pair = thread; pair < tile_items / 2; pair += threads) {
        const int low = (pair & -distance) * 2 + (pair & (distance - 1));
        exchange_pair(tile[low], tile[low + distance], begin + low, pass.segment, length);
      }
    }
  __syncthreads();
  for (int i = thread; i < tile_items; i += threads) {
    const int64_t row = (begin + i) / pass.size, place = (begin + i) % pass.size;
    if (row < n.rows && pass.to >= 0 && i < pass.kept)
      items[pass.to + blockIdx.x * pass.kept + i] = tile[i];
    if (row < n.rows && pass.to < 0 && place < n.count)
      y[(row / n.inner * n.count + place) * n.inner + row % n.inner] = place_of(tile[i]);
  }
}

/// One step with a distance of a tile or more, one thread for each pair.
template <class Item>
__global__ void __launch_bounds__(threads)
    exchange(Item* items, int64_t pairs, int64_t size, int64_t length, int64_t distance) {
  const int64_t pair = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (pair >= pairs) return;
  const int64_t low = (pair & -distance) * 2 + (pair & (distance - 1));
  exchange_pair(items[low], items[low + distance], low, size, length);
}

}  // namespace

void sort(const Sort& a, Workspace workspace, Stream& stream) {
  const SortedRows n(a.x.shape(), a.axis, a.y.extent(a.axis));
  if (a.y.numel() == 0) return;
  visit_number(a.x.dtype(), [&]<class T>(T) {
    using Item = ItemOf<T>;
    auto* items = reinterpret_cast<Item*>(workspace.data);
    constexpr int64_t item_bytes = sizeof(Item);
    n.each_pass(
        [&](const SortPass& pass) {
          const int64_t total = n.rows * pass.size;
          const int64_t read = pass.from < 0 ? a.x.bytes() : total * item_bytes;
          const int64_t written =
              pass.to < 0 ? a.y.bytes() : total / tile_items * pass.kept * item_bytes;
          launch({"sort", "sort_tiles", read + written, total}, sort_tiles<T>,
                 {blocks_for(total, tile_items), dim3(threads)}, stream,
                 static_cast<const T*>(a.x.data<T>()), items, a.y.data<int64_t>(), n, pass,
                 a.descending);
        },
        [&](int64_t length, int64_t distance) {
          const int64_t total = n.rows * n.size;
          launch({"sort", "exchange", 2 * total * item_bytes, total}, exchange<Item>,
                 {blocks_for(total / 2, threads), dim3(threads)}, stream, items, total / 2, n.size,
                 length, distance);
        });
  });
}

}  // namespace zg::cuda

#include <algorithm>
#include <bit>
#include <utility>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/movement/indexed.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {
namespace {

/// An element to sort: a key, in whose order as an unsigned number the elements come, and the
/// element's place in its row. Items differ, so every way to sort gives the same order.
template <class T>
struct Item {
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  static constexpr int digits = sizeof(T);  ///< bytes of the key

  uint32_t place;
  Word key;

  static Item of(T x, int64_t place, bool descending) {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, Word>;
    constexpr Bits sign = Bits(Bits{1} << (8 * sizeof(T) - 1));
    Bits bits = std::bit_cast<Bits>(x);
    if constexpr (std::is_integral_v<T>) {
      bits ^= sign;
    } else {
      const auto value = static_cast<accumulator_t<T>>(x);
      if (value == 0) bits = 0;  // -0 and 0 are equal
      bits = value != value ? Bits(-1) : Bits(bits & sign ? ~bits : bits | sign);
    }
    return {static_cast<uint32_t>(place), descending ? Word(Bits(~bits)) : Word(bits)};
  }
  friend bool operator<(const Item& a, const Item& b) {
    if constexpr (sizeof(Word) == 4)
      return (uint64_t{a.key} << 32 | a.place) < (uint64_t{b.key} << 32 | b.place);
    else
      return a.key != b.key ? a.key < b.key : a.place < b.place;
  }
  size_t digit(int number) const { return key >> 8 * number & 255; }
};

constexpr int most_chunks = 8;  // of a row that several threads sort
constexpr int64_t few = 96, parallel_items = 1 << 16;

/// Sorts by radix (least significant byte first), `other` being as long: the sorted ones are in
/// one of both.
template <class I>
I* sorted(I* items, I* other, int64_t n, int threads) {
  if (n <= few) {
    std::sort(items, items + n);
    return items;
  }
  const int chunks = threads > 1 && n >= parallel_items ? most_chunks : 1;
  const auto begin = [&](int64_t chunk) { return n * chunk / chunks; };
  for (int number = 0; number < I::digits; ++number) {
    int64_t places[most_chunks][256];
    std::fill_n(places[0], 256 * chunks, 0);
    team(threads, chunks, [&](int64_t chunk, int) {
      int64_t* counts = places[chunk];
      for (int64_t i = begin(chunk); i < begin(chunk + 1); ++i) ++counts[items[i].digit(number)];
    });
    int64_t before = 0, most = 0;
    for (int digit = 0; digit < 256; ++digit) {
      const int64_t first = before;
      for (int chunk = 0; chunk < chunks; ++chunk)
        before += std::exchange(places[chunk][digit], before);
      most = std::max(most, before - first);
    }
    if (most == n) continue;  // all have one digit
    team(threads, chunks, [&](int64_t chunk, int) {
      int64_t* next = places[chunk];
      for (int64_t i = begin(chunk); i < begin(chunk + 1); ++i)
        other[next[items[i].digit(number)]++] = items[i];
    });
    std::swap(items, other);
  }
  return items;
}

/// Items that are kept at a time to find the first `count` of a row.
int64_t kept_items(int64_t extent, int64_t count) {
  return std::min(extent, std::max<int64_t>(2 * count, 64));
}

/// The first `count` items of a row, whose elements are `inner` apart, in order; `scratch` has
/// kept_items() twice.
template <class T>
const Item<T>* first_items(const T* x, int64_t extent, int64_t count, int64_t inner,
                           bool descending, Item<T>* scratch, int threads) {
  const int64_t capacity = kept_items(extent, count);
  if (count == 1 && extent <= few) {
    *scratch = Item<T>::of(x[0], 0, descending);
    for (int64_t i = 1; i < extent; ++i)
      *scratch = std::min(*scratch, Item<T>::of(x[i * inner], i, descending));
    return scratch;
  }
  if (capacity == extent) {
    parallel_for(threads, extent, parallel_items, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) scratch[i] = Item<T>::of(x[i * inner], i, descending);
    });
    return sorted(scratch, scratch + extent, extent, threads);
  }
  int64_t kept = 0;
  Item<T> bound = {};  // the last of the first `count` so far
  bool is_bounded = false;
  constexpr int64_t run = 32;
  for (int64_t begin = 0; begin < extent; begin += run) {
    if (is_bounded && inner == 1 && begin + run <= extent) {
      typename Item<T>::Word is_found = 0;  // a vector at a time
      for (int64_t i = begin; i < begin + run; ++i)
        is_found |= Item<T>::of(x[i], 0, descending).key <= bound.key;
      if (!is_found) continue;
    }
    for (int64_t i = begin; i < std::min(begin + run, extent); ++i) {
      const auto item = Item<T>::of(x[i * inner], i, descending);
      if (is_bounded && bound < item) continue;
      scratch[kept++] = item;
      if (kept < capacity) continue;
      std::nth_element(scratch, scratch + count - 1, scratch + kept);
      kept = count;
      bound = scratch[count - 1];
      is_bounded = true;
    }
  }
  std::sort(scratch, scratch + kept);
  return scratch;
}

bool divides_rows(int64_t rows, int64_t extent, int threads) {
  return rows < threads && extent >= parallel_items;
}

}  // namespace

int64_t workspace_bytes(const Sort& args, const Device::Traits& traits) {
  const Indexed at = Indexed::split(args.x.shape(), args.axis);
  const int64_t workers =
      divides_rows(at.outer * at.inner, at.extent, traits.threads) ? 1 : traits.threads;
  return workers * 2 * kept_items(at.extent, args.y.extent(args.axis)) *
         (size_of(args.x.dtype()) == 8 ? 16 : 8);
}

void sort(const Sort& args, Workspace workspace, Stream& stream) {
  if (args.y.numel() == 0) return;
  const Indexed at = Indexed::split(args.x.shape(), args.axis);
  const int64_t rows = at.outer * at.inner, count = args.y.extent(args.axis);
  visit_number(args.x.dtype(), [&]<class T>() {
    static_assert(sizeof(Item<T>) == (sizeof(T) == 8 ? 16 : 8));
    const T* x = args.x.data<T>();
    int64_t* y = args.y.data<int64_t>();
    const auto sort_row = [&](int64_t row, int worker, int threads) {
      const int64_t outer = row / at.inner, offset = row % at.inner;
      Item<T>* scratch =
          reinterpret_cast<Item<T>*>(workspace.data) + worker * 2 * kept_items(at.extent, count);
      const Item<T>* items = first_items(x + outer * at.extent * at.inner + offset, at.extent,
                                         count, at.inner, args.descending, scratch, threads);
      for (int64_t i = 0; i < count; ++i)
        y[(outer * count + i) * at.inner + offset] = items[i].place;
    };
    const int threads = stream.traits().threads;
    if (divides_rows(rows, at.extent, threads)) {
      for (int64_t row = 0; row < rows; ++row) sort_row(row, 0, threads);
      return;
    }
    const int64_t grain = std::max<int64_t>(4096 / at.extent, 1);
    team(threads, (rows + grain - 1) / grain, [&](int64_t task, int worker) {
      for (int64_t row = task * grain; row < std::min(rows, (task + 1) * grain); ++row)
        sort_row(row, worker, 1);
    });
  });
}

}  // namespace zg::cpu

#include "zerograd/kernels/movement/movement.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstdlib>
#include <cstring>
#include <span>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/indices.h"
#include "zerograd/kernels/cpu/loop_nest.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/movement/indexed.h"

namespace zg::cpu {
namespace {

struct CopyAxis {
  int64_t extent, x_stride, y_stride;
};

/// The axes longer than 1, sorted by falling strides of y, so that y is written in the order of
/// addresses.
struct CopyAxes {
  std::array<CopyAxis, Shape::max_rank> axes;
  size_t count = 0;

  explicit CopyAxes(const StridedCopy& args) {
    for (int i = 0; i < args.extents.rank(); ++i) {
      const auto from = static_cast<size_t>(i);
      if (args.extents[i] == 1) continue;
      size_t at = count++;
      for (; at > 0 && std::abs(axes[at - 1].y_stride) < std::abs(args.y_strides[from]); --at)
        axes[at] = axes[at - 1];
      axes[at] = {args.extents[i], args.x_strides[from], args.y_strides[from]};
    }
  }

  CopyAxis take(size_t at) {
    const CopyAxis taken = axes[at];
    std::copy(axes.begin() + at + 1, axes.begin() + count, axes.begin() + at);
    --count;
    return taken;
  }

  /// The axis along which x is contiguous, if y is contiguous along another one and a tile of the
  /// two is worth more than runs of y; else `count`. Windows with strides have short axes: there it
  /// is not, and x is in a cache.
  size_t transposed() const {
    if (count < 2 || axes[count - 1].y_stride != 1 || axes[count - 1].x_stride == 1) return count;
    size_t at = 0;
    while (at < count && axes[at].x_stride != 1) ++at;
    return at < count && axes[at].extent < 16 && axes[count - 1].extent < 64 ? count : at;
  }

  /// From a run of x to one that is copied a little later.
  int64_t runs_ahead() const { return count < 2 ? 0 : 16 * axes[count - 2].x_stride; }

  LoopNest<2> nest() const {
    int64_t extents[Shape::max_rank];
    Strides x{}, y{};
    for (size_t i = 0; i < count; ++i) {
      extents[i] = axes[i].extent;
      x[i] = axes[i].x_stride;
      y[i] = axes[i].y_stride;
    }
    return {Shape(std::span<const int64_t>(extents, count)), {x, y}};
  }
};

/// Results from this size on are written past the caches.
constexpr int64_t streamed_bytes = 1 << 24;

/// memcpy past the caches, which would read each line before it is written and would lose others.
/// Its bytes are visible to other threads after finish_stream().
inline void stream_bytes(void* to, const void* from, size_t bytes) {
#if defined(__SSE2__)
  auto* at = static_cast<__m128i*>(to);
  const auto* source = static_cast<const __m128i*>(from);
  if (reinterpret_cast<uintptr_t>(to) % sizeof *at == 0 && bytes % sizeof *at == 0) {
    for (const auto* end = at + bytes / sizeof *at; at < end; ++at, ++source)
      _mm_stream_si128(at, _mm_loadu_si128(source));
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}
inline void finish_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <class T>
void copy_runs(const LoopNest<2>& nest, const T* x, T* y, int64_t ahead, int threads) {
  constexpr int64_t line = 64 / sizeof(T), longest = 16 * line;
  const int64_t x_stride = nest.inner_stride(0), y_stride = nest.inner_stride(1);
  const bool streams = nest.numel() * int64_t{sizeof(T)} >= streamed_bytes;
  const auto copy = [&](const std::array<int64_t, 2>& offsets, int64_t count) {
    const T* from = x + offsets[0];
    T* to = y + offsets[1];
    if (x_stride == 1 && y_stride == 1) {
      for (int64_t i = 0; i < count && count <= longest; i += line)
        __builtin_prefetch(from + ahead + i);
      const size_t bytes = static_cast<size_t>(count) * sizeof(T);
      streams ? stream_bytes(to, from, bytes) : static_cast<void>(std::memcpy(to, from, bytes));
    } else if (x_stride == 2 && y_stride == 1) {  // a stride that the compiler knows
      for (int64_t i = 0; i < count; ++i) to[i] = from[i * 2];
    } else
      for (int64_t i = 0; i < count; ++i) to[i * y_stride] = from[i * x_stride];
  };
  parallel_for(threads, nest.numel(), elementwise_grain, [&](int64_t begin, int64_t end) {
    nest.run(begin, end, copy);
    finish_stream();
  });
}

/// y[i * y_stride + j] = x[i + j * x_stride] for i < 4 and j < 4.
inline void transpose_words(const uint32_t* x, int64_t x_stride, uint32_t* y, int64_t y_stride) {
  using Four [[gnu::vector_size(16)]] = uint32_t;
  Four rows[4];
  for (int j = 0; j < 4; ++j) std::memcpy(&rows[j], x + j * x_stride, sizeof(Four));
  const Four a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Four b = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Four c = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Four d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  const Four columns[4] = {
      __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
      __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) std::memcpy(y + i * y_stride, &columns[i], sizeof(Four));
}

/// A copy that transposes: x is contiguous along `rows`, y along `columns`. It copies square tiles
/// with sides of one cache line, so that every line that is read or written is used completely.
template <class T>
void copy_tiles(const LoopNest<2>& rest, const CopyAxis& rows, const CopyAxis& columns, const T* x,
                T* y, int threads) {
  constexpr int64_t tile = 64 / sizeof(T);
  const int64_t bands = (rows.extent + tile - 1) / tile;
  team(threads, rest.numel() * bands, [&](int64_t task, int) {
    const int64_t row = task % bands * tile, last = std::min(row + tile, rows.extent);
    rest.run(task / bands, task / bands + 1, [&](const std::array<int64_t, 2>& offsets, int64_t) {
      for (int64_t column = 0; column < columns.extent; column += tile) {
        const int64_t end = std::min(column + tile, columns.extent);
        if constexpr (sizeof(T) == 4)
          if (last - row == tile && end - column == tile) {
            for (int64_t i = row; i < last; i += 4)
              for (int64_t j = column; j < end; j += 4)
                transpose_words(x + offsets[0] + i + j * columns.x_stride, columns.x_stride,
                                y + offsets[1] + i * rows.y_stride + j, rows.y_stride);
            continue;
          }
        for (int64_t i = row; i < last; ++i)
          for (int64_t j = column; j < end; ++j)
            y[offsets[1] + i * rows.y_stride + j] = x[offsets[0] + i + j * columns.x_stride];
      }
    });
  });
}

bool needs_wide_copy(DType dtype) { return is_floating(dtype) && accumulator(dtype) != dtype; }

/// to[k] += from[k].
template <class T>
void add_run(const ElementwiseTable& table, const T* from, arithmetic_t<T>* to, int64_t n) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>)
    if (n >= 16) return table.axpby[sizeof(T) == 2][0](from, to, 1.0, 1.0, n);
  for (int64_t k = 0; k < n; ++k) to[k] += static_cast<arithmetic_t<T>>(from[k]);
}

/// scatter_add into `sums`, which has y's extents. Tasks divide the axes other than the indexed
/// one, so one task computes a sum, in rising order of the position j along the indexed axis.
template <class T, class Index>
void add_elements(const ScatterAdd& args, arithmetic_t<T>* sums, const Device::Traits& traits) {
  const ElementwiseTable& table = ZG_AT_LEVEL(traits.isa, elementwise_table);
  const int threads = traits.threads;
  const Shape shape = named_shape(args.index.shape(), args.x.shape(), args.axis);
  const int64_t extent = shape[args.axis];
  const IndexedStrides of_index = IndexedStrides::of_index(args.index.shape(), args.axis);
  const IndexedStrides of_x = IndexedStrides::of(args.x.shape(), args.axis);
  const IndexedStrides of_y = IndexedStrides::of(args.y.shape(), args.axis);
  const LoopNest<3> nest(shape.with(args.axis, 1), {of_index.others, of_x.others, of_y.others});
  const int64_t index_stride = nest.inner_stride(0), x_stride = nest.inner_stride(1),
                y_stride = nest.inner_stride(2);
  const T* x = reinterpret_cast<const T*>(args.x.raw());
  const Index* index = args.index.data<Index>();
  // A run of neighbouring elements is added for one j before the next j, so that x and index are
  // read in the order of addresses. Where an index names a whole row of neighbours, tasks divide
  // the rows of y, too.
  constexpr int64_t max_run = 256;
  const bool has_rows = index_stride == 0 && x_stride == 1 && y_stride == 1;
  const int64_t grain =
      std::max<int64_t>(max_run, elementwise_grain / std::max<int64_t>(1, extent));
  const int64_t chunks = (nest.numel() + grain - 1) / grain,
                blocks = has_rows && threads > 1 ? 8 : 1;
  team(threads, chunks * blocks, [&](int64_t task, int) {
    const int64_t rows = args.y.extent(args.axis), block = task % blocks;
    const int64_t low = rows * block / blocks, high = rows * (block + 1) / blocks;
    const int64_t first = task / blocks * grain, last = std::min(first + grain, nest.numel());
    nest.run(first, last, [&](const std::array<int64_t, 3>& offsets, int64_t count) {
      const auto row_of = [&](int64_t j, int64_t k) {
        return int64_t{index[offsets[0] + k * index_stride + j * of_index.along]};
      };
      const auto add = [&](int64_t j, int64_t k) {
        sums[offsets[2] + k * y_stride + row_of(j, k) * of_y.along] +=
            static_cast<arithmetic_t<T>>(x[offsets[1] + k * x_stride + j * of_x.along]);
      };
      if (has_rows)
        for (int64_t j = 0; j < extent; ++j) {
          const int64_t row = row_of(j, 0);
          if (row < low || row >= high) continue;
          add_run(table, x + offsets[1] + j * of_x.along, sums + offsets[2] + row * of_y.along,
                  count);
        }
      else if (of_x.along == 1)
        for (int64_t k = 0; k < count; ++k)
          for (int64_t j = 0; j < extent;) {  // a sum stays in a register while its place repeats
            const int64_t row = row_of(j, k);
            arithmetic_t<T>& to = sums[offsets[2] + k * y_stride + row * of_y.along];
            arithmetic_t<T> sum = to;
            const T* from = x + offsets[1] + k * x_stride;
            do sum += static_cast<arithmetic_t<T>>(from[j]);
            while (++j < extent && row_of(j, k) == row);
            to = sum;
          }
      else
        for (int64_t begin = 0; begin < count; begin += max_run)
          for (int64_t j = 0; j < extent; ++j)
            for (int64_t k = begin; k < std::min(count, begin + max_run); ++k) add(j, k);
    });
  });
}

}  // namespace

void strided_copy(const StridedCopy& args, Workspace, Stream& stream) {
  const int threads = stream.traits().threads;
  visit_bits(args.x.dtype(), [&]<class T>() {
    const T* x = reinterpret_cast<const T*>(args.x.raw()) + args.x_offset;
    T* y = reinterpret_cast<T*>(args.y.raw()) + args.y_offset;
    CopyAxes axes(args);
    const size_t transposed = axes.transposed();
    if (transposed == axes.count) return copy_runs(axes.nest(), x, y, axes.runs_ahead(), threads);
    const CopyAxis rows = axes.take(transposed), columns = axes.take(axes.count - 1);
    copy_tiles(axes.nest(), rows, columns, x, y, threads);
  });
}

void gather(const Gather& args, Workspace, Stream& stream) {
  const Shape& shape = args.y.shape();
  const int axis = shape.axis(args.axis);
  check_indices("gather", "index", args.index, args.x.extent(axis));
  // The loop nest does not move in x along `axis`, because the index gives the position there.
  const IndexedStrides of_x = IndexedStrides::of(args.x.shape(), axis);
  IndexedStrides of_index = IndexedStrides::of_index(args.index.shape(), axis);
  of_index.others[static_cast<size_t>(axis)] = of_index.along;
  const LoopNest<3> nest(shape, {broadcast_strides(shape, shape), of_x.others, of_index.others});
  const int64_t x_stride = nest.inner_stride(1), index_stride = nest.inner_stride(2);
  visit_bits(args.x.dtype(), [&]<class T>() {
    visit_index(args.index.dtype(), [&]<class Index>() {
      const T* x = reinterpret_cast<const T*>(args.x.raw());
      T* y = reinterpret_cast<T*>(args.y.raw());
      const Index* index = args.index.data<Index>();
      for_each_run(stream.traits().threads, nest,
                   [&](const std::array<int64_t, 3>& offsets, int64_t count) {
                     const T* from = x + offsets[1];
                     const Index* places = index + offsets[2];
                     if (index_stride == 0 && x_stride == 1)
                       std::memcpy(y + offsets[0], from + int64_t{*places} * of_x.along,
                                   static_cast<size_t>(count) * sizeof(T));
                     else
                       for (int64_t i = 0; i < count; ++i)
                         y[offsets[0] + i] =
                             from[i * x_stride + int64_t{places[i * index_stride]} * of_x.along];
                   });
    });
  });
}

int64_t workspace_bytes(const ScatterAdd& args, const Device::Traits&) {
  return needs_wide_copy(args.y.dtype()) ? args.y.numel() * size_of(accumulator(args.y.dtype()))
                                         : 0;
}

void scatter_add(const ScatterAdd& args, Workspace workspace, Stream& stream) {
  const int threads = stream.traits().threads;
  check_indices("scatter_add", "index", args.index, args.y.extent(args.axis));
  const auto run = [&]<class T>() {
    using A = arithmetic_t<T>;
    T* y = reinterpret_cast<T*>(args.y.raw());
    A* sums = needs_wide_copy(args.y.dtype()) ? reinterpret_cast<A*>(workspace.data)
                                              : reinterpret_cast<A*>(args.y.raw());
    auto convert = [&](const auto* from, auto* to) {
      if constexpr (std::is_same_v<T, A>) return;
      parallel_for(threads, args.y.numel(), elementwise_grain, [&](int64_t begin, int64_t end) {
        using To = std::remove_pointer_t<decltype(to)>;
        for (int64_t i = begin; i < end; ++i) to[i] = static_cast<To>(from[i]);
      });
    };
    convert(y, sums);
    visit_index(args.index.dtype(),
                [&]<class Index>() { add_elements<T, Index>(args, sums, stream.traits()); });
    convert(sums, y);
  };
  // Unsigned integers wrap around.
  if (is_floating(args.y.dtype())) return visit_floating(args.y.dtype(), run);
  args.y.dtype() == DType::i32 ? run.template operator()<uint32_t>()
                               : run.template operator()<uint64_t>();
}

}  // namespace zg::cpu

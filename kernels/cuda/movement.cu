#include "kernels/movement.h"

#include "kernels/cuda/nest.cuh"
#include "kernels/indexed.h"

namespace zg::cuda {
namespace {

constexpr int threads = 256;

/// Bits of one size stand for any dtype.
template <class F>
void visit_bits(DType dtype, const F& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(uint8_t());
    case 2:
      return f(uint16_t());
    case 4:
      return f(uint32_t());
    default:
      return f(uint64_t());
  }
}

template <class T>
__global__ void __launch_bounds__(threads) copy_strided(const T* x, T* y, Nest<2> nest) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= nest.numel) return;
  int64_t at[2];
  nest.locate(i, at);
  y[at[1]] = x[at[0]];
}

/// y and index have `from`'s extents; x has x_extent along the axis. An index that is outside is
/// reported and read as 0.
template <class T, class Index>
__global__ void __launch_bounds__(threads)
    pick(const T* x, const Index* index, T* y, Indexed from, int64_t x_extent, Fault* fault) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= from.outer * from.extent * from.inner) return;
  const int64_t outer = i / (from.extent * from.inner), inner = i % from.inner;
  int64_t row = index[i];
  if (row < 0 || row >= x_extent) {
    report(fault, "gather", "index", i, row, x_extent);
    row = 0;
  }
  if (x_extent > 0) y[i] = x[(outer * x_extent + row) * from.inner + inner];
}

/// A thread an element of y: it alone adds to it, in rising j, and rounds once.
template <class T, class Index>
__global__ void __launch_bounds__(threads)
    add_where(const T* x, const Index* index, T* y, Indexed from, int64_t y_extent) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= from.outer * y_extent * from.inner) return;
  const int64_t inner = i % from.inner, row = i / from.inner % y_extent;
  const int64_t begin = i / from.inner / y_extent * from.extent * from.inner + inner;
  float sum = to_float(y[i]);
  for (int64_t j = 0; j < from.extent; ++j) {
    const int64_t at = begin + j * from.inner;
    if (index[at] == row) sum += to_float(x[at]);
  }
  y[i] = from_float<T>(sum);
}

template <class Index>
__global__ void __launch_bounds__(threads)
    check(const Index* index, int64_t n, int64_t limit, Fault* fault) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < n && (index[i] < 0 || index[i] >= limit))
    report(fault, "scatter_add", "index", i, index[i], limit);
}

}  // namespace

void strided_copy(const StridedCopy& a, Workspace, Stream& stream) {
  const Nest<2> nest(a.extents, {a.x_strides, a.y_strides});
  visit_bits(a.x.dtype(), [&]<class T>(T) {
    launch("strided_copy", copy_strided<T>, {blocks_for(nest.numel, threads), dim3(threads)},
           stream, reinterpret_cast<const T*>(a.x.raw()) + a.x_offset,
           reinterpret_cast<T*>(a.y.raw()) + a.y_offset, nest);
  });
}

void gather(const Gather& a, Workspace, Stream& stream) {
  const Indexed from = Indexed::split(a.index.shape(), a.axis);
  visit_bits(a.x.dtype(), [&]<class T>(T) {
    visit_index(a.index.dtype(), [&]<class Index>(Index) {
      launch("gather", pick<T, Index>, {blocks_for(a.index.numel(), threads), dim3(threads)},
             stream, reinterpret_cast<const T*>(a.x.raw()),
             static_cast<const Index*>(a.index.data<Index>()), reinterpret_cast<T*>(a.y.raw()),
             from, a.x.extent(a.axis), fault_place(stream));
    });
  });
}

void scatter_add(const ScatterAdd& a, Workspace, Stream& stream) {
  const Indexed from = Indexed::split(a.index.shape(), a.axis);
  const int64_t y_extent = a.y.extent(a.axis);
  visit_floating(a.y.dtype(), [&]<class T>(T) {
    visit_index(a.index.dtype(), [&]<class Index>(Index) {
      const Index* index = a.index.data<Index>();
      launch("scatter_add", check<Index>, {blocks_for(a.index.numel(), threads), dim3(threads)},
             stream, index, a.index.numel(), y_extent, fault_place(stream));
      launch("scatter_add", add_where<T, Index>, {blocks_for(a.y.numel(), threads), dim3(threads)},
             stream, static_cast<const T*>(a.x.data<T>()), index, a.y.data<T>(), from, y_extent);
    });
  });
}

}  // namespace zg::cuda

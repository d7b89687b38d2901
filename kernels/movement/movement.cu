#include "zerograd/kernels/movement/movement.h"

#include "zerograd/kernels/cuda/nest.cuh"
#include "zerograd/kernels/movement/indexed.h"

namespace zg::cuda {
namespace {

constexpr int threads = 256;

/// Calls f with a zero of the unsigned type of the dtype's size: copies need no arithmetic.
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

/// y = x, V elements for each thread. nest operand 0: x; 1: y.
template <class T, int V>
__global__ void __launch_bounds__(threads) copy_strided(const T* x, T* y, Nest<2> nest) {
  nest.template each<V>([&](auto width, int64_t, const int64_t(&at)[2]) {
    store(y + at[1], nest.template load<decltype(width)::value>(0, x, at[0]));
  });
}

/// gather, one thread for each element of y: y = x at the index, along an axis of x with `extent`
/// elements, `stride` apart. nest operand 0: index; 1: x at index 0 of that axis. An index outside
/// the axis is reported and read as 0.
template <class T, class Index>
__global__ void __launch_bounds__(threads) pick(const T* x, const Index* index, T* y, Nest<2> nest,
                                                int64_t extent, int64_t stride, Fault* fault) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= nest.numel) return;
  int64_t at[2];
  nest.locate(i, at);
  int64_t row = index[at[0]];
  if (row < 0 || row >= extent) {
    report(fault, FaultSite::gather_index, at[0], row, extent);
    row = 0;
  }
  if (extent > 0) y[i] = x[at[1] + row * stride];
}

/// scatter_add, one thread for each element of y that an index can select. The thread compares the
/// `extent` indices on the element's line along the axis with the element's own position there, and
/// adds the elements of x whose index is equal. It adds in rising j in f32 (unsigned integers in
/// their type) and rounds once, so the bits do not depend on the order of the threads. nest operand
/// 0: y; 1: the line's first index; 2: the line's first element of x; 3: the element's position
/// along the axis.
template <class T, class Index>
__global__ void __launch_bounds__(threads)
    add_where(const T* x, const Index* index, T* y, Nest<4> nest, int64_t extent,
              int64_t index_stride, int64_t x_stride) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= nest.numel) return;
  int64_t at[4];
  nest.locate(i, at);
  auto sum = widened(y[at[0]]);
  for (int64_t j = 0; j < extent; ++j)
    if (index[at[1] + j * index_stride] == at[3]) sum += widened(x[at[2] + j * x_stride]);
  if constexpr (std::is_integral_v<T>)
    y[at[0]] = sum;
  else
    y[at[0]] = from_float<T>(sum);
}

/// Reports indices outside [0, limit); add_where ignores them.
template <class Index>
__global__ void __launch_bounds__(threads)
    check(const Index* index, int64_t n, int64_t limit, Fault* fault) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < n && (index[i] < 0 || index[i] >= limit))
    report(fault, FaultSite::scatter_add_index, i, index[i], limit);
}

}  // namespace

void strided_copy(const StridedCopy& a, Workspace, Stream& stream) {
  const Nest<2> nest(a.extents, {a.x_strides, a.y_strides});
  const Work work("strided_copy", "copy_strided", 2 * nest.numel * size_of(a.x.dtype()),
                  nest.numel);
  visit_bits(a.x.dtype(), [&]<class T>(T) {
    const T* x = reinterpret_cast<const T*>(a.x.raw()) + a.x_offset;
    T* y = reinterpret_cast<T*>(a.y.raw()) + a.y_offset;
    constexpr int V = vector_width<T>;
    if (nest.has_vectors(V) && nest.strides[nest.rank - 1][1] == 1 && starts_vector<V>(x) &&
        starts_vector<V>(y))
      launch(work, copy_strided<T, V>, {blocks_for(nest.numel, threads * V), dim3(threads)}, stream,
             x, y, nest);
    else
      launch(work, copy_strided<T, 1>, {blocks_for(nest.numel, threads), dim3(threads)}, stream, x,
             y, nest);
  });
}

void gather(const Gather& a, Workspace, Stream& stream) {
  const IndexedStrides x = IndexedStrides::of(a.x.shape(), a.axis);
  IndexedStrides index_strides = IndexedStrides::of_index(a.index.shape(), a.axis);
  index_strides.others[static_cast<size_t>(a.y.shape().axis(a.axis))] = index_strides.along;
  const Nest<2> nest(a.y.shape(), {index_strides.others, x.others});
  visit_bits(a.x.dtype(), [&]<class T>(T) {
    visit_index(a.index.dtype(), [&]<class Index>(Index) {
      launch({"gather", "pick", a.index.bytes() + 2 * a.y.bytes(), nest.numel}, pick<T, Index>,
             {blocks_for(nest.numel, threads), dim3(threads)}, stream,
             reinterpret_cast<const T*>(a.x.raw()),
             static_cast<const Index*>(a.index.data<Index>()), reinterpret_cast<T*>(a.y.raw()),
             nest, a.x.extent(a.axis), x.along, fault_place(stream));
    });
  });
}

void scatter_add(const ScatterAdd& a, Workspace, Stream& stream) {
  const Shape shape = named_shape(a.index.shape(), a.x.shape(), a.axis);
  const int64_t y_extent = a.y.extent(a.axis);
  const IndexedStrides from = IndexedStrides::of_index(a.index.shape(), a.axis);
  const IndexedStrides x = IndexedStrides::of(a.x.shape(), a.axis);
  Strides along_axis{};
  along_axis[static_cast<size_t>(shape.axis(a.axis))] = 1;
  const Nest<4> nest(shape.with(a.axis, y_extent), {broadcast_strides(a.y.shape(), a.y.shape()),
                                                    from.others, x.others, along_axis});
  const auto run = [&]<class T>(T) {
    visit_index(a.index.dtype(), [&]<class Index>(Index) {
      const Index* index = a.index.data<Index>();
      launch({"scatter_add", "check", a.index.bytes(), a.index.numel()}, check<Index>,
             {blocks_for(a.index.numel(), threads), dim3(threads)}, stream, index, a.index.numel(),
             y_extent, fault_place(stream));
      launch({"scatter_add", "add_where", operand_bytes(a), nest.numel}, add_where<T, Index>,
             {blocks_for(nest.numel, threads), dim3(threads)}, stream,
             reinterpret_cast<const T*>(a.x.raw()), index, reinterpret_cast<T*>(a.y.raw()), nest,
             shape[a.axis], from.along, x.along);
    });
  };
  if (is_floating(a.y.dtype())) return visit_floating(a.y.dtype(), run);
  a.y.dtype() == DType::i32 ? run(uint32_t()) : run(uint64_t());
}

}  // namespace zg::cuda

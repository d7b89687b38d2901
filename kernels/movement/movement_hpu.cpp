#include "zerograd/kernels/movement/movement.h"

#include "zerograd/kernels/hpu/nest.h"
#include "zerograd/kernels/movement/indexed.h"

namespace zg::hpu {

void strided_copy(const StridedCopy& a, Workspace, Stream& stream) {
  const Nest<2> nest(a.extents, {a.x_strides, a.y_strides});
  const int64_t size = size_of(a.x.dtype());
  const std::string kernel = "strided_copy_" + std::to_string(size);
  const std::byte *x = a.x.raw() + a.x_offset * size, *y = a.y.raw() + a.y_offset * size;
  launch(stream, module("movement"), kernel.c_str(), {groups_for(nest.numel)}, x, y, nest.numel,
         nest.rank, nest.extents, nest.strides[0], nest.strides[1]);
}

void gather(const Gather& a, Workspace, Stream& stream) {
  const IndexedStrides x = IndexedStrides::of(a.x.shape(), a.axis);
  const Nest<1> nest(a.index.shape(), {x.others});
  const std::string kernel =
      "gather_" + std::to_string(size_of(a.x.dtype())) + "_" + name_of(a.index.dtype());
  launch(stream, module("movement"), kernel.c_str(), {groups_for(nest.numel)}, a.x.raw(),
         a.index.raw(), a.y.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0],
         a.x.extent(a.axis), x.along, fault_place(stream), literal("gather"), literal("index"));
}

void scatter_add(const ScatterAdd& a, Workspace, Stream& stream) {
  const Shape& shape = a.index.shape();
  const int64_t y_extent = a.y.extent(a.axis), indices = a.index.numel();
  const IndexedStrides from = IndexedStrides::of(shape, a.axis);
  const IndexedStrides x = IndexedStrides::of(a.x.shape(), a.axis);
  Strides along_axis{};
  along_axis[static_cast<size_t>(shape.axis(a.axis))] = 1;
  const Nest<4> nest(shape.with(a.axis, y_extent), {broadcast_strides(a.y.shape(), a.y.shape()),
                                                    from.others, x.others, along_axis});
  const Code code = module("scatter_add", a.y.dtype());
  const std::string index = name_of(a.index.dtype());
  launch(stream, code, ("check_" + index).c_str(), {groups_for(indices)}, a.index.raw(), indices,
         y_extent, fault_place(stream), literal("scatter_add"), literal("index"));
  launch(stream, code, ("scatter_add_" + index).c_str(), {groups_for(nest.numel)}, a.x.raw(),
         a.index.raw(), a.y.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0],
         nest.strides[1], nest.strides[2], nest.strides[3], shape[a.axis], from.along, x.along);
}

}  // namespace zg::hpu

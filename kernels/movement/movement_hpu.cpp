#include "zerograd/kernels/movement/movement.h"

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/hpu/nest.h"
#include "zerograd/kernels/movement/indexed.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {

// Nest is a loop nest over the axes of a shape (nest.h). fault_place() and the literals, which are
// addresses of names, are arguments for the error that a kernel reports for an invalid index.

void strided_copy(const StridedCopy& a, Workspace, Stream& stream) {
  const Nest<2> nest(a.extents, {a.x_strides, a.y_strides});
  const int64_t size = size_of(a.x.dtype());
  const std::string kernel = fmt::format("strided_copy_{}", size);
  const std::byte *x = a.x.raw() + a.x_offset * size, *y = a.y.raw() + a.y_offset * size;
  launch(stream, module("movement"), kernel.c_str(), {groups_for(nest.numel)}, x, y, nest.numel,
         nest.rank, nest.extents, nest.strides[0], nest.strides[1]);
}

void gather(const Gather& a, Workspace, Stream& stream) {
  const IndexedStrides x = IndexedStrides::of(a.x.shape(), a.axis);
  IndexedStrides index_strides = IndexedStrides::of_index(a.index.shape(), a.axis);
  index_strides.others[static_cast<size_t>(a.y.shape().axis(a.axis))] = index_strides.along;
  const Nest<2> nest(a.y.shape(), {x.others, index_strides.others});
  const std::string kernel = fmt::format("gather_{}_{}", size_of(a.x.dtype()), a.index.dtype());
  launch(stream, module("movement"), kernel.c_str(), {groups_for(nest.numel)}, a.x.raw(),
         a.index.raw(), a.y.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0],
         nest.strides[1], a.x.extent(a.axis), x.along, fault_place(stream), literal("gather"),
         literal("index"));
}

void scatter_add(const ScatterAdd& a, Workspace, Stream& stream) {
  const Shape shape = named_shape(a.index.shape(), a.x.shape(), a.axis);
  const int64_t y_extent = a.y.extent(a.axis), indices = a.index.numel();
  const IndexedStrides index_strides = IndexedStrides::of_index(a.index.shape(), a.axis);
  const IndexedStrides x = IndexedStrides::of(a.x.shape(), a.axis);
  Strides along_axis{};
  along_axis[static_cast<size_t>(shape.axis(a.axis))] = 1;
  const Nest<4> nest(shape.with(a.axis, y_extent), {broadcast_strides(a.y.shape(), a.y.shape()),
                                                    index_strides.others, x.others, along_axis});
  const Code code = module("scatter_add", a.y.dtype());
  const std::string index = name_of(a.index.dtype());
  launch(stream, code, ("check_" + index).c_str(), {groups_for(indices)}, a.index.raw(), indices,
         y_extent, fault_place(stream), literal("scatter_add"), literal("index"));
  launch(stream, code, ("scatter_add_" + index).c_str(), {groups_for(nest.numel)}, a.x.raw(),
         a.index.raw(), a.y.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0],
         nest.strides[1], nest.strides[2], nest.strides[3], shape[a.axis], index_strides.along,
         x.along);
}

namespace {

/// Work-groups for a matrix: one for each row and each 128 columns.
Groups groups_of_rows(int64_t rows, int64_t C) {
  constexpr int64_t columns = 128;  // COLUMNS of embedding.cl
  return {.x = rows, .y = groups_for(C, columns)};
}

}  // namespace

void embedding_forward(const EmbeddingForward& a, Workspace, Stream& stream) {
  const int64_t N = a.y.extent(0), C = a.y.extent(1);
  const std::string kernel = std::string("forward_") + name_of(a.ids.dtype());
  launch(stream, module("embedding", a.y.dtype()), kernel.c_str(), groups_of_rows(N, C),
         a.ids.raw(), a.weight.raw(), a.position.raw(), a.y.raw(), a.weight.extent(0), C,
         a.position ? a.T : int64_t{1}, a.first_position, fault_place(stream),
         literal("embedding_forward"), literal("ids"));
}

void embedding_backward(const EmbeddingBackward& a, Workspace workspace, Stream& stream) {
  const int64_t N = a.dy.extent(0), C = a.dy.extent(1);
  const Code code = module("embedding", a.dy.dtype());
  if (a.dweight) {
    if (a.adds)
      launch(stream, code, "add_zero", {groups_for(a.dweight.numel())}, a.dweight.raw(),
             a.dweight.numel());
    else
      fill_zero(a.dweight, stream);
    const std::string ids = name_of(a.ids.dtype());
    launch(stream, code, ("link_" + ids).c_str(), {groups_for(N)}, a.ids.raw(), workspace.data, N,
           a.dweight.extent(0), fault_place(stream), literal("embedding_backward"), literal("ids"));
    launch(stream, code, ("sum_by_id_" + ids).c_str(), groups_of_rows(N, C), a.ids.raw(),
           workspace.data, a.dy.raw(), a.dweight.raw(), N, C);
  }
  if (a.dposition)
    launch(stream, code, "sum_by_position", groups_of_rows(a.dposition.extent(0), C), a.dy.raw(),
           a.dposition.raw(), N, C, a.T, a.first_position);
}

}  // namespace zg::hpu

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/hpu/nest.h"

namespace zg::hpu {

void where(const Where& a, Workspace, Stream& stream) {
  const Shape& shape = a.y.shape();
  const Nest<3> nest(
      shape, {broadcast_strides(a.condition.shape(), shape), broadcast_strides(a.a.shape(), shape),
              broadcast_strides(a.b.shape(), shape)});
  const std::string kernel = "where_" + std::to_string(size_of(a.y.dtype()));
  launch(stream, module("where"), kernel.c_str(), {groups_for(nest.numel)}, a.condition.raw(),
         a.a.raw(), a.b.raw(), a.y.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0],
         nest.strides[1], nest.strides[2]);
}

}  // namespace zg::hpu

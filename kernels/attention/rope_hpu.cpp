#include "zerograd/kernels/attention/rope.h"
#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"

namespace zg::hpu {

void rope(const Rope& a, Workspace, Stream& stream) {
  const int64_t T = a.x.extent(1), D = a.x.extent(2) / a.heads, R = a.table.extent(1);
  const int64_t items = a.x.extent(0) * T * a.heads * (R / 2 + (D - R + 1) / 2);
  launch(stream, module("rope", a.x.dtype()), "rope", {groups_for(items)}, a.x.raw(), a.y.raw(),
         a.table.raw(), a.positions.raw(), items, T, a.table.extent(0), a.first_position, a.heads,
         D, R, a.backward ? -1.0f : 1.0f, fault_place(stream), literal("rope"),
         literal("positions"));
}

}  // namespace zg::hpu

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/window/window.h"

namespace zg::hpu {

void window_reduce(const WindowReduce& a, Workspace, Stream& stream) {
  const Planes n(a);
  const auto& [rows, columns] = a.window;
  const Long8 planes{
      {n.channels, n.x_rows, n.x_columns, n.y_rows, n.y_columns, n.sample, n.channel, n.place}};
  const Long8 window{{rows.size, rows.stride, rows.before, rows.dilation, columns.size,
                      columns.stride, columns.before, columns.dilation}};
  launch(stream, module("window", a.y.dtype()), "window_reduce", {groups_for(a.y.numel())},
         a.x.raw(), a.weight.raw(), a.bias.raw(), a.y.raw(), a.places.raw(), a.y.numel(), planes,
         window, int32_t{a.transposed}, int32_t{a.largest}, static_cast<float>(a.divisor));
}

}  // namespace zg::hpu

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/workspace.h"
#include "zerograd/kernels/optimizer/adam.h"

namespace zg::hpu {

void sum_of_squares(const SumOfSquares& a, Workspace workspace, Stream& stream) {
  const SquareGroups cut(a.x.numel());
  if (cut.granules == 0) return;
  const Code code = module("sum_of_squares", a.x.dtype());
  launch(stream, code, "squares", {cut.groups}, a.x.raw(), workspace.data, cut.granules);
  launch(stream, code, "add_squares", {}, workspace.data, a.limbs.raw(), a.non_finite.raw(),
         cut.groups);
}

}  // namespace zg::hpu

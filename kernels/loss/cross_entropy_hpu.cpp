#include "zerograd/kernels/loss/cross_entropy.h"

#include "zerograd/kernels/hpu/launch.h"

namespace zg::hpu {

void cross_entropy_forward(const CrossEntropyForward& a, Workspace, Stream& stream) {
  const std::string kernel = std::string("cross_entropy_forward_") + name_of(a.targets.dtype());
  launch(stream, module("cross_entropy", a.logits.dtype()), kernel.c_str(), {a.logits.extent(0)},
         a.logits.raw(), a.targets.raw(), a.loss.raw(), a.log_sum.raw(), a.logits.extent(1),
         a.ignore_index, fault_place(stream), literal("cross_entropy_forward"), literal("targets"));
}

void cross_entropy_backward(const CrossEntropyBackward& a, Workspace, Stream& stream) {
  const std::string kernel = std::string("cross_entropy_backward_") + name_of(a.targets.dtype());
  launch(stream, module("cross_entropy", a.logits.dtype()), kernel.c_str(), {a.logits.extent(0)},
         a.logits.raw(), a.targets.raw(), a.log_sum.raw(), a.dloss.raw(), a.dlogits.raw(),
         a.logits.extent(1), a.ignore_index, fault_place(stream), literal("cross_entropy_backward"),
         literal("targets"));
}

}  // namespace zg::hpu

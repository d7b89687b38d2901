#include "zerograd/kernels/elementwise/gelu.h"

#include "zerograd/kernels/hpu/launch.h"

namespace zg::hpu {

void gelu_forward(const GeluForward& a, Workspace, Stream& stream) {
  const bool tanh = a.activation == Activation::gelu_tanh;
  const int64_t n = a.x.numel();
  launch(stream, module("gelu", a.x.dtype()), tanh ? "gelu_tanh_forward" : "gelu_erf_forward",
         {groups_for(n)}, a.x.raw(), a.y.raw(), n);
}

void gelu_backward(const GeluBackward& a, Workspace, Stream& stream) {
  const bool tanh = a.activation == Activation::gelu_tanh;
  const int64_t n = a.x.numel();
  launch(stream, module("gelu", a.x.dtype()), tanh ? "gelu_tanh_backward" : "gelu_erf_backward",
         {groups_for(n)}, a.dy.raw(), a.x.raw(), a.dx.raw(), n);
}

}  // namespace zg::hpu

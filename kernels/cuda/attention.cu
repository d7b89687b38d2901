#include "kernels/cuda/attention.cuh"

#include <cmath>

namespace zg::cuda {
namespace {

template <class Args>
AttentionCall call_of(const Args& a) {
  AttentionCall call{
      .shape = a.shape,
      .bias_head = a.bias && a.bias.shape().rank() == 3 ? a.shape.T * a.shape.keys : 0,
      .q = a.q.raw(),
      .k = a.k.raw(),
      .v = a.v.raw(),
      .bias = a.bias ? a.bias.template data<float>() : nullptr,
      .out = a.out.raw(),
      .log_sum = a.log_sum ? a.log_sum.template data<float>() : nullptr};
  if (call.shape.scale == 0.0f)
    call.shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.shape.D)));
  return call;
}

}  // namespace

void attention_forward(const AttentionForward& a, Workspace, Stream& stream) {
  plain_attention_forward(a.q.dtype(), call_of(a), stream);
}

void attention_backward(const AttentionBackward& a, Workspace workspace, Stream& stream) {
  AttentionCall call = call_of(a);
  call.row_dots = reinterpret_cast<float*>(workspace.data);
  call.dout = a.dout.raw();
  call.dq = a.dq.raw();
  call.dk = a.dk.raw();
  call.dv = a.dv.raw();
  plain_attention_backward(a.q.dtype(), call, stream);
}

}  // namespace zg::cuda

#include "zerograd/kernels/attention/attention.cuh"

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
      .alibi_slopes = a.alibi_slopes ? a.alibi_slopes.template data<float>() : nullptr,
      .out = a.out.raw(),
      .log_sum = a.log_sum ? a.log_sum.template data<float>() : nullptr};
  if (call.shape.scale == 0.0f)
    call.shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.shape.D)));
  return call;
}

constexpr int64_t largest_mma_head = 128, step = 8;  // elements of 16 bytes

bool takes_pieces(const void* data, const HeadLayout& layout) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && layout.offset % step == 0 &&
         layout.batch % step == 0 && layout.head % step == 0 && layout.token % step == 0;
}

/// Whether the tensor cores' kernels take it: by dtype, head size and where rows begin, all of
/// which a call's arguments fix.
bool suits_mma(DType dtype, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  return (dtype == DType::bf16 || dtype == DType::f16) && s.D % step == 0 &&
         s.D <= largest_mma_head && s.scale > 0.0f && takes_pieces(call.q, s.q) &&
         takes_pieces(call.k, s.k) && takes_pieces(call.v, s.v) && takes_pieces(call.out, s.out);
}

}  // namespace

void attention_forward(const AttentionForward& a, Workspace, Stream& stream) {
  const AttentionCall call = call_of(a);
  const bool mma = suits_mma(a.q.dtype(), call);
  const auto run = mma && suits_hopper(call, stream) ? hopper_attention_forward
                   : mma                             ? mma_attention_forward
                                                     : plain_attention_forward;
  run(a.q.dtype(), call, stream);
}

void attention_backward(const AttentionBackward& a, Workspace workspace, Stream& stream) {
  AttentionCall call = call_of(a);
  call.row_dots = reinterpret_cast<float*>(workspace.data);
  call.dout = a.dout.raw();
  call.dq = a.dq.raw();
  call.dk = a.dk.raw();
  call.dv = a.dv.raw();
  const AttentionShape& s = call.shape;
  const bool mma = suits_mma(a.q.dtype(), call) && takes_pieces(call.dout, s.out) &&
                   takes_pieces(call.dq, s.q) && takes_pieces(call.dk, s.k) &&
                   takes_pieces(call.dv, s.v);
  dot_rows_of_out(a.q.dtype(), call, stream);
  (mma ? mma_attention_backward : plain_attention_backward)(a.q.dtype(), call, stream);
}

}  // namespace zg::cuda

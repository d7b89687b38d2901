#include "zerograd/kernels/attention/attention.cuh"

#include <cmath>

namespace zg::cuda {
namespace {

template <class Args>
AttentionCall call_of(const char* op, const Args& a, Stream& stream) {
  AttentionCall call{
      .shape = a.shape,
      .bias_head = a.bias && a.bias.shape().rank() == 3 ? a.shape.T * a.shape.keys : 0,
      .q = a.q.raw(),
      .k = a.k.raw(),
      .v = a.v.raw(),
      .bias = a.bias ? a.bias.template data<float>() : nullptr,
      .alibi_slopes = a.alibi_slopes ? a.alibi_slopes.template data<float>() : nullptr,
      .starts = a.starts ? a.starts.template data<int32_t>() : nullptr,
      .key_lengths = a.key_lengths ? a.key_lengths.template data<int32_t>() : nullptr,
      .out = a.out.raw(),
      .log_sum = a.log_sum ? a.log_sum.template data<float>() : nullptr};
  if (call.shape.scale == 0.0f)
    call.shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.shape.D)));
  call.shape.dropout_key.begin *= a.shape.T * a.shape.keys;
  check_masks(op, call, stream);
  return call;
}

constexpr int64_t largest_mma_head = 128;
constexpr int64_t vector = 8;  // two-byte elements in 16 bytes, the unit of loads and stores

bool has_aligned_rows(const void* data, const HeadLayout& layout) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && layout.offset % vector == 0 &&
         layout.batch % vector == 0 && layout.head % vector == 0 && layout.token % vector == 0;
}

/// Whether the tensor core kernels accept the call. The answer depends only on dtype, head size and
/// the alignment of rows, so equal calls use the same kernel and give the same bits.
bool suits_mma(DType dtype, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  return (dtype == DType::bf16 || dtype == DType::f16) && s.D % vector == 0 &&
         s.D <= largest_mma_head && s.scale > 0.0f && has_aligned_rows(call.q, s.q) &&
         has_aligned_rows(call.k, s.k) && has_aligned_rows(call.v, s.v) &&
         has_aligned_rows(call.out, s.out);
}

}  // namespace

void attention_forward(const AttentionForward& a, Workspace, Stream& stream) {
  const AttentionCall call = call_of("attention_forward", a, stream);
  const bool mma = suits_mma(a.q.dtype(), call);
  const bool hopper = mma && suits_hopper(call, stream);
  const auto run = hopper ? hopper_attention_forward
                   : mma  ? mma_attention_forward
                          : plain_attention_forward;
  run(a.q.dtype(), call, stream);
}

void attention_backward(const AttentionBackward& a, Workspace workspace, Stream& stream) {
  AttentionCall call = call_of("attention_backward", a, stream);
  call.row_dots = reinterpret_cast<float*>(workspace.data);
  call.dout = a.dout.raw();
  call.dq = a.dq.raw();
  call.dk = a.dk.raw();
  call.dv = a.dv.raw();
  const AttentionShape& s = call.shape;
  const bool mma = suits_mma(a.q.dtype(), call) && has_aligned_rows(call.dout, s.out) &&
                   has_aligned_rows(call.dq, s.q) && has_aligned_rows(call.dk, s.k) &&
                   has_aligned_rows(call.dv, s.v);
  const bool hopper = mma && suits_hopper(call, stream);
  const auto run = hopper ? hopper_attention_backward
                   : mma  ? mma_attention_backward
                          : plain_attention_backward;
  run(a.q.dtype(), call, stream);
}

}  // namespace zg::cuda

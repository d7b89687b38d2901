#include "zerograd/kernels/attention/attention.h"

#include <cmath>
#include <string_view>

#include "zerograd/kernels/elementwise/dropout_hpu.h"
#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/hpu/variant.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
namespace {

/// The kernels for a call: `size` is the number in their names (chunks in attention.cl, columns in
/// attention_tiles.cl), `rows` the resident rows of a work-group.
struct Choice {
  Code code;
  int size;
  int64_t rows;
  bool has_tiles = true;  ///< attention_queries computes the row dots, too
};
template <class Args>
Choice choice_of(const Args& a, const Stream& stream) {
  const int64_t D = a.shape.D;
  const DType dtype = a.q.dtype();
  const Code code = module("attention", dtype);
  const Variant variant = D <= 128 ? variant_of(stream) : Variant::portable;
  if (variant == Variant::dpas && dtype == DType::bf16) {
    const char* const dpas = dpas_variant(stream);
    return {module("attention_tiles", dtype, dpas), D <= 64 ? 64 : 128,
            D <= 64 && dpas == std::string_view("dpas16") ? 128 : 64};
  }
  if (variant != Variant::portable)
    return {module("attention_tiles", dtype, "sg16"), D <= 64 ? 64 : 128, 32};
  return D <= 64    ? Choice{code, 2, 32, false}
         : D <= 128 ? Choice{code, 4, 16, false}
         : D <= 256 ? Choice{code, 8, 8, false}
                    : Choice{code, 32, 8, false};
}

std::byte* begin_of(const Tensor& tensor, const HeadLayout& layout) {
  return tensor.raw() + layout.offset * size_of(tensor.dtype());
}

/// Reports invalid starts and key lengths.
template <class Args>
void check_masks(const char* op, const Args& a, Stream& stream) {
  const Code code = module("attention", a.q.dtype());
  const AttentionShape& s = a.shape;
  const int64_t tokens = s.B * s.T;
  if (a.starts)
    launch(stream, code, "attention_check_starts", {groups_for(tokens), 1, 1}, a.starts.raw(),
           tokens, s.T, fault_place(stream), literal(op), literal("starts"));
  if (a.key_lengths)
    launch(stream, code, "attention_check_key_lengths", {groups_for(s.B), 1, 1},
           a.key_lengths.raw(), s.B, s.keys, fault_place(stream), literal(op),
           literal("key_lengths"));
}

/// Launches `kernel` with one work-group for every choice.rows of the `tokens` rows of each of
/// `heads` heads.
template <class Args, class... More>
void launch_heads(Stream& stream, const char* kernel, int64_t heads, int64_t tokens, const Args& a,
                  const More&... more) {
  const AttentionShape& s = a.shape;
  const Choice choice = choice_of(a, stream);
  const int64_t bias_head = a.bias && a.bias.shape().rank() == 3 ? s.T * s.keys : 0;
  const float scale =
      s.scale != 0.0f ? s.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.D)));
  const std::string name = fmt::format("{}_{}", kernel, choice.size);
  launch(stream, choice.code, name.c_str(), {groups_for(tokens, choice.rows), heads, s.B},
         begin_of(a.q, s.q), begin_of(a.k, s.k), begin_of(a.v, s.v), a.bias.raw(),
         a.alibi_slopes.raw(), a.starts.raw(), a.key_lengths.raw(), static_cast<int32_t>(s.group()),
         Long8{s.H, s.T, s.keys, s.offset, bias_head, s.causal ? 1 : 0, s.D, s.window},
         Long8{s.q.batch, s.q.head, s.q.token, s.k.batch, s.k.head, s.k.token},
         Long8{s.v.batch, s.v.head, s.v.token, s.out.batch, s.out.head, s.out.token}, scale,
         s.dropout_key.seed, s.dropout_key.sample, s.dropout_key.step, s.dropout_key.site,
         s.dropout_key.begin, dropout_threshold(s.dropout), dropout_scale(s.dropout), more...);
}

}  // namespace

void attention_forward(const AttentionForward& a, Workspace, Stream& stream) {
  check_masks("attention_forward", a, stream);
  launch_heads(stream, "attention_forward", a.shape.H, a.shape.T, a, begin_of(a.out, a.shape.out),
               a.log_sum.raw());
}

void attention_backward(const AttentionBackward& a, Workspace workspace, Stream& stream) {
  const AttentionShape& s = a.shape;
  check_masks("attention_backward", a, stream);
  constexpr int64_t rows = 8;  // rows per work-group of attention_dot_rows
  std::byte* const row_dots = workspace.data;
  std::byte* const dout = begin_of(a.dout, s.out);
  std::byte *const out = begin_of(a.out, s.out), *const dq = begin_of(a.dq, s.q);
  if (choice_of(a, stream).has_tiles) {
    launch_heads(stream, "attention_queries", s.H, s.T, a, dout, a.log_sum.raw(), row_dots, dq,
                 out);
  } else {
    launch(stream, module("attention", a.q.dtype()), "attention_dot_rows",
           {groups_for(s.T, rows), s.H, s.B}, out, dout, row_dots, s.out.batch, s.out.head,
           s.out.token, s.H, s.T, static_cast<int32_t>(s.D));
    launch_heads(stream, "attention_queries", s.H, s.T, a, dout, a.log_sum.raw(), row_dots, dq);
  }
  launch_heads(stream, "attention_keys", s.key_heads(), s.keys, a, dout, a.log_sum.raw(), row_dots,
               begin_of(a.dk, s.k), begin_of(a.dv, s.v));
}

}  // namespace zg::hpu

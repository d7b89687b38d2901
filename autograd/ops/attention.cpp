#include "zerograd/kernels/attention/attention.h"

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// The layout of heads in a tensor [B, H, tokens, D].
HeadLayout separate_layout(const AttentionShape& n, int64_t tokens) {
  return {.offset = 0, .batch = n.H * tokens * n.D, .head = tokens * n.D, .token = n.D};
}

void check_options(const AttentionOptions& options, const AttentionShape& n, const Tensor& q) {
  if (!(options.dropout >= 0.0f && options.dropout < 1.0f))
    throw ConfigError(
        fmt::format("attention: dropout {:f}; expected 0 <= dropout < 1", options.dropout));
  const auto check_dtype = [&](const char* name, const Tensor& tensor) {
    if (tensor.dtype() != accumulator(q.dtype()))
      throw DTypeError(fmt::format("attention: {} holds {}; expected {}; try cast", name,
                                   tensor.dtype(), accumulator(q.dtype())));
  };
  if (options.bias) {
    const Shape& bias = options.bias.shape();
    const Shape plane{n.T, n.keys}, planes{n.H, n.T, n.keys};
    if (bias != plane && bias != planes)
      refuse_shape("attention", "bias", bias, fmt::format("{} or {}", plane, planes));
    check_dtype("bias", options.bias);
  }
  if (options.alibi_slopes) {
    const Shape& slopes = options.alibi_slopes.shape();
    if (slopes != Shape{n.H})
      refuse_shape("attention", "alibi_slopes", slopes, Shape{n.H}.str() + ", one of each head");
    check_dtype("alibi_slopes", options.alibi_slopes);
  }
}

struct Attended {
  Tensor out;
  Tensor log_sum;  ///< absent if the op is not recorded: only backward reads it
};

Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, const Shape& out_shape,
                const AttentionShape& n, const AttentionOptions& options, bool recorded) {
  check_options(options, n, q);
  const Tensor out = empty_like(q, out_shape);
  const Tensor log_sum =
      recorded ? Tensor::empty({n.B, n.H, n.T}, accumulator(q.dtype()), q.device()) : Tensor();
  kernels::attention_forward({.q = q,
                              .k = k,
                              .v = v,
                              .bias = options.bias,
                              .alibi_slopes = options.alibi_slopes,
                              .out = out,
                              .log_sum = log_sum,
                              .shape = n},
                             out.device().compute());
  return {out, log_sum};
}

void backward_of_fused(const AttentionShape& n, const BackwardPass& pass) {
  const Tensor qkv = pass.saved(0);
  const InputGradient dqkv(pass, 0, qkv.dtype());
  kernels::attention_backward({.q = qkv,
                               .k = qkv,
                               .v = qkv,
                               .bias = pass.saved(3),
                               .alibi_slopes = pass.saved(4),
                               .out = pass.saved(1),
                               .log_sum = pass.saved(2),
                               .dout = pass.gradient_of_output(),
                               .dq = dqkv.tensor(),
                               .dk = dqkv.tensor(),
                               .dv = dqkv.tensor(),
                               .shape = n},
                              pass.stream());
  dqkv.accumulate();
}

void backward_of_separate(const AttentionShape& n, const BackwardPass& pass) {
  const Tensor q = pass.saved(0), k = pass.saved(1), v = pass.saved(2);
  const InputGradient dq(pass, 0, q.dtype()), dk(pass, 1, q.dtype()), dv(pass, 2, q.dtype());
  // The kernel makes all three in one pass.
  auto memory = [](const InputGradient& gradient, const Tensor& like) {
    return gradient ? gradient.tensor() : empty_like(like);
  };
  kernels::attention_backward({.q = q,
                               .k = k,
                               .v = v,
                               .bias = pass.saved(5),
                               .alibi_slopes = pass.saved(6),
                               .out = pass.saved(3),
                               .log_sum = pass.saved(4),
                               .dout = pass.gradient_of_output(),
                               .dq = memory(dq, q),
                               .dk = memory(dk, k),
                               .dv = memory(dv, v),
                               .shape = n},
                              pass.stream());
  dq.accumulate();
  dk.accumulate();
  dv.accumulate();
}

AttentionShape fused_shape(const Shape& qkv, int heads, const AttentionOptions& options) {
  if (qkv.rank() != 3) refuse_shape("attention", "qkv", qkv, "rank 3: [B, T, 3C]");
  if (heads < 1)
    refuse_shape("attention", "qkv", qkv, fmt::format("1 head or more, got {}", heads));
  if (qkv[2] % (3 * int64_t{heads}) != 0)
    refuse_shape("attention", "qkv", qkv,
                 fmt::format("a last axis divisible by 3 * heads = {}", 3 * int64_t{heads}));
  AttentionShape n{.B = qkv[0],
                   .H = heads,
                   .T = qkv[1],
                   .keys = qkv[1],
                   .D = qkv[2] / (3 * int64_t{heads}),
                   .causal = options.causal,
                   .scale = options.scale,
                   .dropout = options.dropout,
                   .dropout_key = options.key};
  n.q = qkv_layout(n, options.order, 0);
  n.k = qkv_layout(n, options.order, 1);
  n.v = qkv_layout(n, options.order, 2);
  n.out = {.batch = n.T * n.H * n.D, .head = n.D, .token = n.H * n.D};
  return n;
}

AttentionShape separate_shape(const Shape& q, const Shape& k, const Shape& v,
                              const AttentionOptions& options) {
  if (q.rank() != 4) refuse_shape("attention", "q", q, "rank 4: [B, H, T, D]");
  if (k.rank() != 4 || k.with(2, q[2]) != q)
    refuse_shape("attention", "k", k, q.str() + " but for axis 2");
  if (v != k) refuse_shape("attention", "v", v, "the shape of k, " + k.str());
  if (options.causal && k[2] < q[2])
    refuse_shape("attention", "k", k, fmt::format("at least the {} tokens of q when causal", q[2]));
  AttentionShape n{.B = q[0],
                   .H = q[1],
                   .T = q[2],
                   .keys = k[2],
                   .offset = options.causal ? k[2] - q[2] : 0,
                   .D = q[3],
                   .causal = options.causal,
                   .scale = options.scale,
                   .dropout = options.dropout,
                   .dropout_key = options.key};
  n.q = n.out = separate_layout(n, n.T);
  n.k = n.v = separate_layout(n, n.keys);
  return n;
}

}  // namespace

Var attention(const Var& qkv, int heads, const AttentionOptions& options) {
  const Tensor values = floating_operand("attention", "qkv", qkv);
  const AttentionShape n = fused_shape(values.shape(), heads, options);
  const auto [out, log_sum] =
      attend(values, values, values, {n.B, n.T, n.H * n.D}, n, options, qkv.needs_gradient());
  return record("attention", {qkv}, out, {values, out, log_sum, options.bias, options.alibi_slopes},
                n, [](const AttentionShape& shape, const BackwardPass& pass) {
                  backward_of_fused(shape, pass);
                });
}

Var attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& options) {
  const Tensor queries = floating_operand("attention", "q", q);
  const Tensor keys = operand("attention", "k", k), values = operand("attention", "v", v);
  check_alike("attention", "q", queries, "k", keys);
  check_alike("attention", "q", queries, "v", values);
  const AttentionShape n = separate_shape(queries.shape(), keys.shape(), values.shape(), options);
  const bool recorded = q.needs_gradient() || k.needs_gradient() || v.needs_gradient();
  const auto [out, log_sum] = attend(queries, keys, values, queries.shape(), n, options, recorded);
  return record("attention", {q, k, v}, out,
                {queries, keys, values, out, log_sum, options.bias, options.alibi_slopes}, n,
                [](const AttentionShape& shape, const BackwardPass& pass) {
                  backward_of_separate(shape, pass);
                });
}

}  // namespace zg

#include "zerograd/kernels/attention/attention.h"

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/attention/rope.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// The layout of heads in a tensor [B, heads, tokens, D].
HeadLayout by_head(int64_t heads, int64_t tokens, int64_t D) {
  return {.offset = 0, .batch = heads * tokens * D, .head = tokens * D, .token = D};
}

/// The layout of heads in a tensor [B, tokens, heads * D].
HeadLayout by_token(int64_t heads, int64_t tokens, int64_t D) {
  return {.offset = 0, .batch = tokens * heads * D, .head = D, .token = heads * D};
}

void check_options(const AttentionOptions& options, const AttentionShape& n, const Tensor& q) {
  if (!(options.dropout >= 0.0f && options.dropout < 1.0f))
    raise<ConfigError>("attention: dropout {:f}; expected 0 <= dropout < 1", options.dropout);
  const auto check_dtype = [&](const char* name, const Tensor& tensor) {
    if (tensor.dtype() != accumulator(q.dtype()))
      raise<DTypeError>("attention: {} holds {}; expected {}; try cast", name, tensor.dtype(),
                        accumulator(q.dtype()));
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
  if (options.window < 0 || (options.window > 0 && !options.causal))
    raise<ConfigError>("attention: window {}{}; expected 0, or more if causal", options.window,
                       options.causal ? "" : " without causal");
  if (options.starts && (!options.causal || n.keys != n.T))
    raise<ConfigError>(
        "attention: starts with {} attention of {} queries to {} keys; expected causal attention "
        "to as many keys as queries",
        options.causal ? "causal" : "full", n.T, n.keys);
  const auto check_integers = [&](const char* name, const Tensor& tensor, const Shape& expected) {
    if (!tensor) return;
    if (tensor.shape() != expected) refuse_shape("attention", name, tensor.shape(), expected.str());
    if (tensor.dtype() != DType::i32)
      raise<DTypeError>("attention: {} holds {}; expected i32; try cast", name, tensor.dtype());
  };
  check_integers("starts", options.starts, {n.B, n.T});
  check_integers("key_lengths", options.key_lengths, {n.B});
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
                              .starts = options.starts,
                              .key_lengths = options.key_lengths,
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
                               .starts = pass.saved(5),
                               .key_lengths = pass.saved(6),
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
                               .starts = pass.saved(7),
                               .key_lengths = pass.saved(8),
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
                   .dropout_key = options.key,
                   .window = options.window};
  n.q = qkv_layout(n, options.order, 0);
  n.k = qkv_layout(n, options.order, 1);
  n.v = qkv_layout(n, options.order, 2);
  n.out = by_token(n.H, n.T, n.D);
  return n;
}

/// All but the layouts.
AttentionShape separate_extents(int64_t B, int64_t H, int64_t kv_heads, int64_t T, int64_t keys,
                                int64_t D, const Shape& k, const AttentionOptions& options) {
  if (kv_heads != H && (kv_heads < 1 || H % kv_heads != 0))
    refuse_shape("attention", "k", k, fmt::format("a number of heads that divides the {} of q", H));
  if (options.causal && keys < T)
    refuse_shape("attention", "k", k, fmt::format("at least the {} tokens of q when causal", T));
  return {.B = B,
          .H = H,
          .T = T,
          .keys = keys,
          .offset = options.causal ? keys - T : 0,
          .D = D,
          .causal = options.causal,
          .scale = options.scale,
          .dropout = options.dropout,
          .dropout_key = options.key,
          .kv_heads = kv_heads == H ? 0 : kv_heads,
          .window = options.window};
}

AttentionShape separate_shape(const Shape& q, const Shape& k, const Shape& v,
                              const AttentionOptions& options) {
  if (q.rank() != 4) refuse_shape("attention", "q", q, "rank 4: [B, H, T, D]");
  if (k.rank() != 4 || k.with(1, q[1]).with(2, q[2]) != q)
    refuse_shape("attention", "k", k,
                 q.str() + " but for axis 2 and, with grouped queries, the heads");
  if (v != k) refuse_shape("attention", "v", v, "the shape of k, " + k.str());
  AttentionShape n = separate_extents(q[0], q[1], k[1], q[2], k[2], q[3], k, options);
  n.q = n.out = by_head(n.H, n.T, n.D);
  n.k = n.v = by_head(k[1], n.keys, n.D);
  return n;
}

AttentionShape projected_shape(const Shape& q, const Shape& k, const Shape& v, int heads,
                               const AttentionOptions& options) {
  if (q.rank() != 3) refuse_shape("attention", "q", q, "rank 3: [B, T, heads * D]");
  if (heads < 1 || q[2] % heads != 0 || q[2] == 0)
    refuse_shape("attention", "q", q, fmt::format("a last axis divisible by heads = {}", heads));
  const int64_t D = q[2] / heads;
  if (k.rank() != 3 || k[0] != q[0] || k[2] % D != 0)
    refuse_shape(
        "attention", "k", k,
        fmt::format("[{}, keys, kv_heads * {}]: heads of as many elements as q's", q[0], D));
  if (v != k) refuse_shape("attention", "v", v, "the shape of k, " + k.str());
  AttentionShape n = separate_extents(q[0], heads, k[2] / D, q[1], k[1], D, k, options);
  n.q = n.out = by_token(n.H, n.T, D);
  n.k = n.v = by_token(k[2] / D, n.keys, D);
  return n;
}

/// The shape from those of q, k and v.
template <class ShapeOf>
Var separate_attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& options,
                       const ShapeOf& shape_of) {
  const Tensor queries = floating_operand("attention", "q", q);
  const Tensor keys = operand("attention", "k", k), values = operand("attention", "v", v);
  check_alike("attention", "q", queries, "k", keys);
  check_alike("attention", "q", queries, "v", values);
  const AttentionShape n = shape_of(queries.shape(), keys.shape(), values.shape());
  const bool recorded = q.needs_gradient() || k.needs_gradient() || v.needs_gradient();
  const auto [out, log_sum] = attend(queries, keys, values, queries.shape(), n, options, recorded);
  return record("attention", {q, k, v}, out,
                {queries, keys, values, out, log_sum, options.bias, options.alibi_slopes,
                 options.starts, options.key_lengths},
                n, [](const AttentionShape& shape, const BackwardPass& pass) {
                  backward_of_separate(shape, pass);
                });
}

}  // namespace

Var attention(const Var& qkv, int heads, const AttentionOptions& options) {
  const Tensor values = floating_operand("attention", "qkv", qkv);
  const AttentionShape n = fused_shape(values.shape(), heads, options);
  const auto [out, log_sum] =
      attend(values, values, values, {n.B, n.T, n.H * n.D}, n, options, qkv.needs_gradient());
  return record("attention", {qkv}, out,
                {values, out, log_sum, options.bias, options.alibi_slopes, options.starts,
                 options.key_lengths},
                n, [](const AttentionShape& shape, const BackwardPass& pass) {
                  backward_of_fused(shape, pass);
                });
}

Var attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& options) {
  return separate_attention(q, k, v, options,
                            [&](const Shape& qs, const Shape& ks, const Shape& vs) {
                              return separate_shape(qs, ks, vs, options);
                            });
}

Var attention(const Var& q, const Var& k, const Var& v, int heads,
              const AttentionOptions& options) {
  return separate_attention(q, k, v, options,
                            [&](const Shape& qs, const Shape& ks, const Shape& vs) {
                              return projected_shape(qs, ks, vs, heads, options);
                            });
}

namespace {

struct Turn {
  int64_t heads, first_position;
  bool backward = false;
};

void turn(const Turn& n, const Tensor& x, const Tensor& y, const Tensor& table,
          const Tensor& positions, Stream& stream) {
  kernels::rope({.x = x,
                 .y = y,
                 .table = table,
                 .positions = positions,
                 .heads = n.heads,
                 .first_position = n.first_position,
                 .backward = n.backward},
                stream);
}

Turn inverse(const Turn& n) { return {n.heads, n.first_position, !n.backward}; }

Var turned(const Var& x, const Turn& n, const Tensor& table, const Tensor& positions) {
  const Tensor values = floating_operand("rope", "x", x);
  const Tensor y = empty_like(values);
  turn(n, values, y, table, positions, y.device().compute());
  return record(
      "rope", {x}, y, {table, positions}, n,
      [](const Turn& of, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        if (!dx) return;
        turn(inverse(of), dy, dx.tensor(), pass.saved(0), pass.saved(1), pass.stream());
        dx.accumulate();
      },
      [](const Turn& of, const ComposedPass& pass) {
        pass.accumulate(
            0, turned(pass.gradient_of_output(), inverse(of), pass.saved(0), pass.saved(1)));
      });
}

}  // namespace

Var rope(const Var& x, int64_t heads, const Tensor& table, int64_t first_position) {
  return turned(x, {heads, first_position}, table, {});
}

Var rope(const Var& x, int64_t heads, const Tensor& table, const Tensor& positions) {
  if (!positions) throw ShapeError("rope: positions is absent; expected an i32 tensor [B, T]");
  return turned(x, {heads, 0}, table, positions);
}

}  // namespace zg

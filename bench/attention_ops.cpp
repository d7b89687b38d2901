#include <algorithm>
#include <cmath>

#include "bench/case.h"
#include "bench/op.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/attention/rope.h"

namespace zg::bench {
namespace {

struct Size {
  int64_t B, H, T, D;

  explicit Size(const Extents& e) : B(e[0]), H(e[1]), T(e[2]), D(e[3]) {}
  int64_t C() const { return H * D; }
  int64_t numel() const { return B * T * C(); }
  int64_t rows() const { return B * H * T; }
  std::string shape() const {
    return "B" + std::to_string(B) + " H" + std::to_string(H) + " T" + std::to_string(T) + " d" +
           std::to_string(D);
  }
  /// FLOP of one T x D by D x T product, summed over heads. Query t uses only keys 0 to t.
  double causal_flops() const {
    return static_cast<double>(B * H * D) * static_cast<double>(T) * static_cast<double>(T + 1);
  }
};

/// The layout of the models: one tensor [B, T, 3C] holds q, k and v.
AttentionShape fused(const Size& s) {
  const auto part = [&](int64_t i) {
    return HeadLayout{
        .offset = i * s.C(), .batch = s.T * 3 * s.C(), .head = s.D, .token = 3 * s.C()};
  };
  return {.B = s.B,
          .H = s.H,
          .T = s.T,
          .keys = s.T,
          .D = s.D,
          .q = part(0),
          .k = part(1),
          .v = part(2),
          .out = {.batch = s.T * s.C(), .head = s.D, .token = s.C()}};
}

Tensor slopes_of(int64_t heads, const Operands& operands) {
  std::vector<double> slopes(static_cast<size_t>(heads));
  for (size_t h = 0; h < slopes.size(); ++h) slopes[h] = std::ldexp(1.0, -1 - static_cast<int>(h));
  if (operands.wide() == DType::f64) return Tensor::from(slopes, {heads}, operands.device);
  return Tensor::from(std::vector<float>(slopes.begin(), slopes.end()), {heads}, operands.device);
}

AttentionForward forward_args(const Operands& operands, const Size& s, bool with_slopes) {
  const Tensor qkv = operands.random({s.B, s.T, 3 * s.C()}, 1);
  return {.q = qkv,
          .k = qkv,
          .v = qkv,
          .alibi_slopes = with_slopes ? slopes_of(s.H, operands) : Tensor(),
          .out = operands.zeros({s.B, s.T, s.C()}),
          .log_sum = operands.sums({s.B, s.H, s.T}),
          .shape = fused(s)};
}

/// Runs a forward pass first. If q, k and v are in one tensor, their gradients are, too.
AttentionBackward backward_args(const Operands& operands, const AttentionForward& forward) {
  kernels::attention_forward(forward, operands.device.compute());
  const bool is_fused = forward.shape.k.offset > 0;
  const Tensor dq = operands.zeros(forward.q.shape());
  return {.q = forward.q,
          .k = forward.k,
          .v = forward.v,
          .alibi_slopes = forward.alibi_slopes,
          .out = forward.out,
          .log_sum = forward.log_sum,
          .dout = operands.random(forward.out.shape(), 4),
          .dq = dq,
          .dk = is_fused ? dq : operands.zeros(forward.k.shape()),
          .dv = is_fused ? dq : operands.zeros(forward.v.shape()),
          .shape = forward.shape};
}

/// A score sums D products in the accumulator and adds ALiBi's distances below T / 2. exp turns the
/// error of a score into a relative error of the weight; the weights of a row sum to 1, and |v| <=
/// 1. Tensor cores and tile registers also round each weight to bf16 or f16.
Error forward_error(DType dtype, const Extents& e) {
  const double scores =
      unit_roundoff(accumulator(dtype)) * static_cast<double>(4 * e[3] + e[2] + 64);
  return {.absolute = scores + (dtype == accumulator(dtype) ? 0.0 : unit_roundoff(dtype))};
}

/// The forward pass's error enters through out and log_sum. A weight and its gradient, which is at
/// most sqrt(D), are rounded once each; the weights of one key sum to at most 1 + ln T.
Error backward_error(DType dtype, const Extents& e) {
  const double column = 1.0 + std::log(static_cast<double>(e[2]));
  return {.absolute = 2.0 * column * std::sqrt(static_cast<double>(e[3])) *
                      forward_error(dtype, e).absolute};
}

Work forward_work(DType dtype, const Extents& e) {
  const Size s(e);
  return {.name = "attention forward",
          .shape = s.shape(),
          .dtype = dtype,
          .flops = 2.0 * s.causal_flops(),
          .read = bytes_of(3 * s.numel(), dtype),
          .written = bytes_of(s.numel(), dtype) + bytes_of(s.rows(), DType::f32)};
}

/// Five matrix products: scores, dv, gradient of the weights, dq, dk. The forward pass has two.
Work backward_work(DType dtype, const Extents& e) {
  const Size s(e);
  return {.name = "attention backward",
          .shape = s.shape(),
          .dtype = dtype,
          .flops = 5.0 * s.causal_flops(),
          .read = bytes_of(5 * s.numel(), dtype) + bytes_of(s.rows(), DType::f32),
          .written = bytes_of(3 * s.numel(), dtype)};
}

std::vector<Extents> timed_training(const Sizes& sizes) {
  if (sizes.on_accelerator) return {{4, 16, 4096, 128}, {16, 16, 1024, 64}, {4, 16, 1024, 96}};
  return {{1, 12, 1024, 64}, {4, 12, 256, 64}, {8, 3, 128, 16}};
}

Op training_op(const std::string& name, bool with_slopes) {
  const auto forward = calls(kernels::attention_forward, [with_slopes](auto& operands, auto& e) {
    return forward_args(operands, Size(e), with_slopes);
  });
  const auto backward = calls(kernels::attention_backward, [with_slopes](auto& operands, auto& e) {
    return backward_args(operands, forward_args(operands, Size(e), with_slopes));
  });
  return {.name = name,
          .kernels = {{.call = forward, .work = forward_work, .error = forward_error},
                      {.call = backward, .work = backward_work, .error = backward_error}},
          .tested = {{1, 1, 1, 1}, {2, 2, 5, 3}, {2, 3, 31, 16}, {1, 2, 67, 40}, {1, 1, 130, 64}},
          .function =
              [with_slopes](std::span<const Var> in, const Extents& e) {
                AttentionOptions options;
                if (with_slopes)
                  options.alibi_slopes =
                      slopes_of(e[1], Operands(in[0].value().device(), in[0].dtype()));
                return attention(in[0], static_cast<int>(e[1]), options);
              },
          .variables = [](const Operands& operands, const Extents& e) -> std::vector<Tensor> {
            return {operands.random({e[0], e[2], 3 * e[1] * e[3]}, 1)};
          }};
}

/// Grouped queries, and a sliding window of e[5] keys: {B, H, T, D, kv_heads, window}, on three
/// projections.
AttentionShape grouped_shape(const Extents& e) {
  const Size s(e);
  const HeadLayout queries{.batch = s.T * s.C(), .head = s.D, .token = s.C()};
  const HeadLayout keys{.batch = s.T * e[4] * s.D, .head = s.D, .token = e[4] * s.D};
  return {.B = s.B,
          .H = s.H,
          .T = s.T,
          .keys = s.T,
          .D = s.D,
          .q = queries,
          .k = keys,
          .v = keys,
          .out = queries,
          .kv_heads = e[4],
          .window = e[5]};
}

AttentionForward grouped_forward(const Operands& operands, const Extents& e) {
  const Size s(e);
  return {.q = operands.random({s.B, s.T, s.C()}, 1),
          .k = operands.random({s.B, s.T, e[4] * s.D}, 2),
          .v = operands.random({s.B, s.T, e[4] * s.D}, 3),
          .out = operands.zeros({s.B, s.T, s.C()}),
          .log_sum = operands.sums({s.B, s.H, s.T}),
          .shape = grouped_shape(e)};
}

/// The share of the T (T + 1) / 2 causal scores that are within the window.
double share_in_window(const Extents& e) {
  const double T = static_cast<double>(e[2]);
  const double window = e[5] > 0 ? std::min(T, static_cast<double>(e[5])) : T;
  return window * (2.0 * T - window + 1.0) / (T * (T + 1.0));
}

/// The number of tensors of the size of q, and of the size of k, that a kernel reads and writes.
/// log_sum is small and not counted.
struct Traffic {
  double queries_read, keys_read, queries_written, keys_written;
};

std::function<Work(DType, const Extents&)> grouped_work(Work (*plain)(DType, const Extents&),
                                                        const Traffic& traffic) {
  return [=](DType dtype, const Extents& e) {
    const Size s(e);
    Work work = plain(dtype, e);
    const double queries = bytes_of(s.numel(), work.dtype);
    const double keys = queries * static_cast<double>(e[4]) / static_cast<double>(s.H);
    work.name += ", grouped";
    work.shape += " kv" + std::to_string(e[4]);
    if (e[5] > 0) work.shape += " w" + std::to_string(e[5]);
    work.flops *= share_in_window(e);
    work.read = traffic.queries_read * queries + traffic.keys_read * keys;
    work.written = traffic.queries_written * queries + traffic.keys_written * keys;
    return work;
  };
}

Op grouped_op() {
  const auto forward = calls(kernels::attention_forward, grouped_forward);
  const auto backward = calls(kernels::attention_backward, [](auto& operands, auto& e) {
    return backward_args(operands, grouped_forward(operands, e));
  });
  return {.name = "attention, grouped",
          .kernels =
              {{.call = forward,
                .work = grouped_work(
                    forward_work,
                    {.queries_read = 1, .keys_read = 2, .queries_written = 1, .keys_written = 0}),
                .error = forward_error},
               {.call = backward,
                .work = grouped_work(
                    backward_work,
                    {.queries_read = 3, .keys_read = 2, .queries_written = 1, .keys_written = 2}),
                // The weights of one key are summed over the heads of a group.
                .error =
                    [](DType dtype, const Extents& e) {
                      const int64_t heads = e[1] / e[4];
                      return Error{.absolute = backward_error(dtype, e).absolute *
                                               static_cast<double>(heads)};
                    }}},
          .tested = {{1, 1, 1, 1, 1, 0},
                     {1, 4, 5, 3, 2, 3},
                     {2, 5, 33, 16, 1, 0},
                     {1, 6, 31, 40, 3, 7},
                     {1, 4, 130, 64, 2, 50}},
          .timed = [](const Sizes& sizes) -> std::vector<Extents> {
            if (sizes.on_accelerator)
              return {{4, 32, 4096, 128, 8, 0}, {4, 32, 4096, 128, 8, 1024}};
            return {{4, 9, 256, 64, 3, 0}, {1, 9, 1024, 64, 3, 256}, {8, 3, 128, 16, 1, 0}};
          },
          .function =
              [](std::span<const Var> in, const Extents& e) {
                return attention(in[0], in[1], in[2], static_cast<int>(e[1]), {.window = e[5]});
              },
          .variables = [](const Operands& operands, const Extents& e) -> std::vector<Tensor> {
            const AttentionForward args = grouped_forward(operands, e);
            return {args.q, args.k, args.v};
          }};
}

/// One query per head attends to T positions of the key and value cache.
AttentionForward decode_args(const Operands& operands, const Size& s) {
  const HeadLayout one{.batch = s.C(), .head = s.D, .token = s.C()};
  const HeadLayout cache{.batch = s.T * s.C(), .head = s.D, .token = s.C()};
  return {.q = operands.random({s.B, 1, s.C()}, 1),
          .k = operands.random({s.B, s.T, s.C()}, 2),
          .v = operands.random({s.B, s.T, s.C()}, 3),
          .out = operands.zeros({s.B, 1, s.C()}),
          .shape = {.B = s.B,
                    .H = s.H,
                    .T = 1,
                    .keys = s.T,
                    .offset = s.T - 1,
                    .D = s.D,
                    .q = one,
                    .k = cache,
                    .v = cache,
                    .out = one}};
}

Op decode_op() {
  return {.name = "attention decode",
          .kernels = {{.call = calls(
                           kernels::attention_forward,
                           [](auto& operands, auto& e) { return decode_args(operands, Size(e)); }),
                       .work =
                           [](DType dtype, const Extents& e) {
                             const Size s(e);
                             return Work{.name = "attention decode",
                                         .shape = s.shape(),
                                         .dtype = dtype,
                                         .flops = 4.0 * static_cast<double>(s.numel()),
                                         .read = bytes_of(2 * s.numel() + s.B * s.C(), dtype),
                                         // One row is written for T rows that are read.
                                         .written = 0.0};
                           },
                       .error = forward_error}},
          .tested = {{1, 1, 1, 1}, {2, 3, 33, 20}, {1, 2, 300, 64}},
          .timed = [](const Sizes&) -> std::vector<Extents> {
            return {{1, 12, 1024, 64}, {8, 12, 1024, 64}, {1, 12, 16384, 64}};
          }};
}

/// Extents: B, T, heads, head size D, and R, the number of rotated elements of a head.
Op rope_op() {
  const auto table_of = [](const Operands& operands, const Extents& e) {
    return rope_table({}, e[4], e[1] + 3, operands.wide(), operands.device);
  };
  const auto call = [table_of](bool backward) {
    return calls(kernels::rope, [=](auto& operands, auto& e) {
      return Rope{.x = operands.random({e[0], e[1], e[2] * e[3]}, 1),
                  .y = operands.zeros({e[0], e[1], e[2] * e[3]}),
                  .table = table_of(operands, e),
                  .heads = e[2],
                  .first_position = 3,
                  .backward = backward};
    });
  };
  const auto work = [](DType dtype, const Extents& e) {
    const int64_t n = e[0] * e[1] * e[2] * e[3];
    return Work{.name = "rope",
                .shape = extents_text({e[0], e[1], e[2], e[3]}),
                .dtype = dtype,
                .flops = 3.0 * static_cast<double>(n),
                .read = bytes_of(n, dtype),
                .written = bytes_of(n, dtype)};
  };
  // Two products below 1 and their sum; a cosine and a sine are rounded, too.
  const auto error = roundings(6.0);
  return {.name = "rope",
          .kernels = {{.call = call(false), .work = work, .error = error},
                      {.call = call(true), .error = error}},
          .tested = {{1, 1, 1, 2, 2},
                     {2, 5, 3, 6, 4},
                     {1, 33, 5, 33, 18},
                     {3, 31, 2, 64, 64},
                     {2, 7, 4, 128, 64}},
          .timed = [](const Sizes& sizes) -> std::vector<Extents> {
            return {{sizes.on_accelerator ? 16 : 1, 1024, 12, 64, 64}};
          },
          .function =
              [table_of](std::span<const Var> in, const Extents& e) {
                const Operands operands(in[0].value().device(), in[0].dtype());
                return rope(in[0], e[2], table_of(operands, e), /*first_position=*/3);
              },
          .variables = [](const Operands& operands, const Extents& e) -> std::vector<Tensor> {
            return {operands.random({e[0], e[1], e[2] * e[3]}, 1)};
          }};
}

}  // namespace

OpFamily attention_ops() {
  OpFamily ops = {training_op("attention", false), training_op("attention, ALiBi", true),
                  grouped_op(), decode_op(), rope_op()};
  ops.front().timed = timed_training;
  return ops;
}

}  // namespace zg::bench

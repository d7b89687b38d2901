#include <cmath>

#include "tests/autograd/op_check.h"
#include "zerograd/kernels/attention/attention.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// softmax(scale q k^T + mask + bias) v, with the whole matrix of weights in memory, built from the
/// general ops.
Var plain_attention(const Var& q, const Var& k, const Var& v, bool causal, double scale,
                    const Tensor& bias) {
  const int64_t T = q.shape()[2], keys = k.shape()[2];
  std::vector<double> mask(static_cast<size_t>(T * keys));
  for (int64_t t = 0; t < T; ++t)
    for (int64_t j = 0; j < keys; ++j)
      if (causal && j > keys - T + t) mask[static_cast<size_t>(t * keys + j)] = -1e30;
  const Var transposed = permute(k, {0, 1, 3, 2});
  Var scores = mul(matmul(q, transposed), scale);
  scores = add(scores, Var(Tensor::from(mask, {T, keys}, q.device())));
  if (bias) scores = add(scores, Var(bias));
  return matmul(softmax(scores), v);
}

/// Splits [B, T, 3C] into q, k, v [B, H, T, D].
std::vector<Var> separated(const Var& qkv, int heads) {
  const int64_t B = qkv.shape()[0], T = qkv.shape()[1], C = qkv.shape()[2] / 3;
  std::vector<Var> parts;
  for (const Var& part : split(qkv, std::vector<int64_t>{C, C, C}, 2))
    parts.push_back(permute(reshape(part, {B, T, heads, C / heads}), {0, 2, 1, 3}));
  return parts;
}

constexpr double tolerance = 1e-13;  // sums of fewer than 100 terms in [-1, 1], in f64

/// The bias that ALiBi slopes add to the scores: [H, T, keys].
Tensor dense_alibi(const std::vector<double>& slopes, int64_t T, int64_t keys, int64_t offset) {
  std::vector<double> bias;
  for (double slope : slopes)
    for (int64_t t = 0; t < T; ++t)
      for (int64_t j = 0; j < keys; ++j)
        bias.push_back(slope * static_cast<double>(j - (t + offset)));
  return Tensor::from(bias, {static_cast<int64_t>(slopes.size()), T, keys}, shared_device());
}

struct MemoryUse {
  int64_t peak;     // of the device, in bytes
  int64_t operand;  // bytes of the bias or slopes
};

/// Runs forward and backward. `make_options` returns options with the bias or the slopes.
template <class MakeOptions>
MemoryUse memory_of_pass(const MakeOptions& make_options) {
  const Device device = Device::cpu(0, {.threads = 2});
  const Tensor qkv = random_tensor({2, 150, 3 * 96}, DType::bf16, device, 1);
  const int64_t before = device.memory().live();
  const AttentionOptions options = make_options(device);
  const int64_t operand = device.memory().live() - before;
  Tape tape(device);
  const Var y = attention(tape.variable(qkv), 12, options);
  const Tensor dy = random_tensor(y.shape(), DType::bf16, device, 2);
  tape.backward(std::span(&y, 1), std::span(&dy, 1));
  return {device.memory().peak(), operand};
}

}  // namespace

TEST_CASE("attention on a fused projection is softmax of scaled scores times values") {
  const int heads = 2;
  const Tensor qkv = doubles({2, 5, 3 * 2 * 3}, 1);
  const std::vector<Var> parts = separated(Var(qkv), heads);
  for (bool causal : {true, false})
    for (float scale : {0.0f, 0.5f})
      for (const Tensor& bias : {Tensor(), doubles({5, 5}, 2), doubles({2, 5, 5}, 3)}) {
        const AttentionOptions options{.causal = causal, .scale = scale, .bias = bias};
        const Var expected =
            plain_attention(parts[0], parts[1], parts[2], causal,
                            scale == 0.0f ? 1 / std::sqrt(3.0) : static_cast<double>(scale), bias);
        const Var y = attention(Var(qkv), heads, options);
        CHECK(y.shape() == Shape{2, 5, 6});
        CHECK(excess(y.value(), values_of(reshape(permute(expected, {0, 2, 1, 3}), {2, 5, 6})),
                     tolerance) <= 1.0);
        check_gradient([&](Tape&, Vars in) { return attention(in[0], heads, options); }, {qkv});
      }
}

TEST_CASE("attention accepts a fused QKV projection in by_head order as well as in by_part order") {
  const int heads = 3;
  const Tensor qkv = doubles({2, 5, 3 * 3 * 4}, 1), slopes = doubles({3}, 2, 0.0, 1.0);
  const Var parts = reshape(Var(qkv), {2, 5, 3, heads, 4});
  const Tensor by_head = reshape(permute(parts, {0, 1, 3, 2, 4}), {2, 5, 3 * 3 * 4}).value();
  const AttentionOptions by_part{.dropout = 0.2f, .alibi_slopes = slopes};
  AttentionOptions options = by_part;
  options.order = QKVOrder::by_head;
  CHECK(values_of(attention(Var(by_head), heads, options)) ==
        values_of(attention(Var(qkv), heads, by_part)));
  CHECK(values_of(attention(Var(by_head), heads, by_part)) !=
        values_of(attention(Var(qkv), heads, by_part)));
  check_gradient([&](Tape&, Vars in) { return attention(in[0], heads, options); }, {by_head});
}

TEST_CASE("attention on separate q, k and v matches plain ops, also with more keys than queries") {
  const Tensor q = doubles({2, 3, 4, 5}, 1);
  for (int64_t keys : {4, 7})
    for (bool causal : {true, false})
      for (const Tensor& bias : {Tensor(), doubles({3, 4, keys}, 4)}) {
        const Tensor k = doubles({2, 3, keys, 5}, 2), v = doubles({2, 3, keys, 5}, 3);
        const AttentionOptions options{.causal = causal, .bias = bias};
        const Var y = attention(Var(q), Var(k), Var(v), options);
        CHECK(excess(y.value(),
                     values_of(
                         plain_attention(Var(q), Var(k), Var(v), causal, 1 / std::sqrt(5.0), bias)),
                     tolerance) <= 1.0);
        check_gradient([&](Tape&, Vars in) { return attention(in[0], in[1], in[2], options); },
                       {q, k, v});
      }
  const Tensor k = doubles({2, 3, 3, 5}, 2), v = doubles({2, 3, 3, 5}, 3);
  const AttentionOptions full{.causal = false};
  check_gradient([&](Tape&, Vars in) { return attention(in[0], in[1], in[2], full); }, {q, k, v});
  check_gradient([&](Tape&, Vars in) { return attention(Var(q), in[0], Var(v), full); }, {k});
  check_gradient([&](Tape&, Vars in) { return attention(Var(q), Var(k), in[0], full); }, {v});
}

TEST_CASE("attention with ALiBi equals attention with a bias of slope times distance") {
  const std::vector<double> slopes{0.5, 0.0625, 0.25};
  const Tensor given = Tensor::from(slopes, {3}, shared_device());
  for (bool causal : {true, false})
    for (int64_t keys : {4, 7}) {
      const Tensor q = doubles({2, 3, 4, 5}, 1);
      const Tensor k = doubles({2, 3, keys, 5}, 2), v = doubles({2, 3, keys, 5}, 3);
      const Tensor dense = dense_alibi(slopes, 4, keys, causal ? keys - 4 : 0);
      const AttentionOptions options{.causal = causal, .alibi_slopes = given};
      CHECK(excess(attention(Var(q), Var(k), Var(v), options).value(),
                   values_of(
                       plain_attention(Var(q), Var(k), Var(v), causal, 1 / std::sqrt(5.0), dense)),
                   tolerance) <= 1.0);
      check_gradient([&](Tape&, Vars in) { return attention(in[0], in[1], in[2], options); },
                     {q, k, v});
    }
  const Tensor qkv = doubles({2, 5, 3 * 6}, 1);
  const std::vector<Var> parts = separated(Var(qkv), 3);
  const AttentionOptions fused{.dropout = 0.3f,
                               .key = {.seed = 3, .step = 1, .site = 9},
                               .bias = doubles({5, 5}, 2),
                               .alibi_slopes = given};
  check_gradient([&](Tape&, Vars in) { return attention(in[0], 3, fused); }, {qkv});
  const Var both = add(Var(dense_alibi(slopes, 5, 5, 0)), Var(fused.bias));
  CHECK(excess(attention(Var(qkv), 3, {.bias = fused.bias, .alibi_slopes = given}).value(),
               values_of(reshape(permute(plain_attention(parts[0], parts[1], parts[2], true,
                                                         1 / std::sqrt(2.0), both.value()),
                                         {0, 2, 1, 3}),
                                 {2, 5, 6})),
               tolerance) <= 1.0);
}

TEST_CASE("attention with ALiBi adds only the bytes of the slopes to peak memory") {
  const MemoryUse none = memory_of_pass([](const Device&) { return AttentionOptions(); });
  const MemoryUse slopes = memory_of_pass([](const Device& device) {
    return AttentionOptions{.alibi_slopes = Tensor::from(alibi_slopes(12), {12}, device)};
  });
  const MemoryUse dense = memory_of_pass([](const Device& device) {
    return AttentionOptions{.bias = Tensor::zeros({12, 150, 150}, DType::f32, device)};
  });
  CHECK(slopes.operand < 1024);
  CHECK(slopes.peak == none.peak + slopes.operand);
  CHECK(dense.peak >= none.peak + 12 * 150 * 150 * 4);
}

TEST_CASE("attention with dropout drops the same weights in forward and backward") {
  const Tensor qkv = doubles({2, 5, 12}, 1);
  const AttentionOptions options{.dropout = 0.3f, .key = {.seed = 3, .step = 1, .site = 9}};
  check_gradient([&](Tape&, Vars in) { return attention(in[0], 2, options); }, {qkv});
  CHECK(values_of(attention(Var(qkv), 2, options)) != values_of(attention(Var(qkv), 2)));
}

TEST_CASE("attention refuses shapes and options that do not fit") {
  const Var qkv(doubles({2, 5, 12}, 1)), q(doubles({2, 3, 4, 5}, 1)), k(doubles({2, 3, 3, 5}, 1));
  CHECK(message_of<ShapeError>([&] { attention(qkv, 5); }) ==
        "attention: qkv has shape [2, 5, 12]; expected a last axis divisible by 3 * heads = 15");
  CHECK_ERROR(ShapeError, "expected rank 3: [B, T, 3C]", attention(q, 1));
  CHECK(message_of<ShapeError>([&] { attention(qkv, 0); }) ==
        "attention: qkv has shape [2, 5, 12]; expected 1 head or more, got 0");
  CHECK_ERROR(ShapeError,
              "attention: k has shape [2, 3, 3, 5]; expected at least the 4 tokens of q",
              attention(q, k, k, {}));
  CHECK_ERROR(ShapeError, "attention: v has shape", attention(q, q, k, {}));
  CHECK_ERROR(ShapeError, "attention: k has shape [2, 5, 12]; expected [2, 3, 4, 5] but for axis 2",
              attention(q, qkv, qkv, {}));
  CHECK_ERROR(DTypeError, "attention: q holds f64 and k holds f32",
              attention(q, cast(q, DType::f32), q, {}));
  CHECK_ERROR(ShapeError, "attention: bias has shape [5, 4]; expected [5, 5] or [2, 5, 5]",
              attention(qkv, 2, {.bias = doubles({5, 4}, 1)}));
  CHECK_ERROR(DTypeError, "attention: bias holds f32; expected f64; try cast",
              attention(qkv, 2, {.bias = cast(Var(doubles({5, 5}, 1)), DType::f32).value()}));
  CHECK(message_of<ShapeError>([&] { attention(qkv, 2, {.alibi_slopes = doubles({5}, 1)}); }) ==
        "attention: alibi_slopes has shape [5]; expected [2], one of each head");
  CHECK(message_of<DTypeError>([&] {
          attention(cast(qkv, DType::bf16), 2, {.alibi_slopes = doubles({2}, 1)});
        }) == "attention: alibi_slopes holds f64; expected f32; try cast");
  CHECK_ERROR(ConfigError, "attention: dropout 1.000000; expected 0 <= dropout < 1",
              attention(qkv, 2, {.dropout = 1.0f}));
}

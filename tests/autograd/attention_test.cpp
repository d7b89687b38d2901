#include <cmath>

#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// softmax(scale q k^T + bias) v with the whole matrix of weights, from the general ops.
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

/// [B, T, 3C] as q, k, v [B, H, T, D].
std::vector<Var> separated(const Var& qkv, int heads) {
  const int64_t B = qkv.shape()[0], T = qkv.shape()[1], C = qkv.shape()[2] / 3;
  std::vector<Var> parts;
  for (const Var& part : split(qkv, std::vector<int64_t>{C, C, C}, 2))
    parts.push_back(permute(reshape(part, {B, T, heads, C / heads}), {0, 2, 1, 3}));
  return parts;
}

constexpr double tolerance = 1e-13;  // sums of under a hundred terms below 1, in f64

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

TEST_CASE("attention on separate tensors, with more keys than queries") {
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

TEST_CASE("attention with dropout drops the same weights in both directions") {
  const Tensor qkv = doubles({2, 5, 12}, 1);
  const AttentionOptions options{.dropout = 0.3f, .key = {.seed = 3, .step = 1, .site = 9}};
  check_gradient([&](Tape&, Vars in) { return attention(in[0], 2, options); }, {qkv});
  CHECK(values_of(attention(Var(qkv), 2, options)) != values_of(attention(Var(qkv), 2)));
}

TEST_CASE("attention refuses shapes and options that do not fit") {
  const Var qkv(doubles({2, 5, 12}, 1)), q(doubles({2, 3, 4, 5}, 1)), k(doubles({2, 3, 3, 5}, 1));
  CHECK(message_of<ShapeError>([&] { attention(qkv, 5); }) ==
        "attention: qkv has shape [2, 5, 12]; expected a last axis divisible by 3 * heads = 15");
  CHECK(contains(message_of<ShapeError>([&] { attention(q, 1); }), "expected rank 3: [B, T, 3C]"));
  CHECK(message_of<ShapeError>([&] { attention(qkv, 0); }) ==
        "attention: qkv has shape [2, 5, 12]; expected 1 head or more, got 0");
  CHECK(contains(message_of<ShapeError>([&] { attention(q, k, k, {}); }),
                 "attention: k has shape [2, 3, 3, 5]; expected at least the 4 tokens of q"));
  CHECK(
      contains(message_of<ShapeError>([&] { attention(q, q, k, {}); }), "attention: v has shape"));
  CHECK(contains(message_of<ShapeError>([&] { attention(q, qkv, qkv, {}); }),
                 "attention: k has shape [2, 5, 12]; expected [2, 3, 4, 5] but for axis 2"));
  CHECK(contains(message_of<DTypeError>([&] { attention(q, cast(q, DType::f32), q, {}); }),
                 "attention: q holds f64 and k holds f32"));
  CHECK(contains(message_of<ShapeError>([&] {
                   attention(qkv, 2, {.bias = doubles({5, 4}, 1)});
                 }),
                 "attention: bias has shape [5, 4]; expected [5, 5] or [2, 5, 5]"));
  CHECK(contains(message_of<DTypeError>([&] {
                   attention(qkv, 2, {.bias = cast(Var(doubles({5, 5}, 1)), DType::f32).value()});
                 }),
                 "attention: bias holds f32; expected f64; try cast"));
  CHECK(contains(message_of<ConfigError>([&] { attention(qkv, 2, {.dropout = 1.0f}); }),
                 "attention: dropout 1.000000; expected 0 <= dropout < 1"));
}

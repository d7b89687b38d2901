#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct Bytes {
  int64_t peak, live;
  bool operator==(const Bytes&) const = default;
};

/// A pass through every family of ops, forward and backward; what it took at most and what stayed.
Bytes bytes_of_a_pass(const Device& device) {
  auto made = [&](const Shape& shape) { return Tensor::full(shape, 0.5, DType::bf16, device); };
  const Tensor ids = Tensor::full({2, 16}, 3, DType::i64, device);
  const Tensor flat_index = Tensor::full({2, 16, 1}, 1, DType::i64, device);
  Tape tape(device);
  const Var table = tape.variable(made({31, 32})), position = tape.variable(made({16, 32}));
  const Var gamma = tape.variable(made({32})), weight = tape.variable(made({96, 32}));
  const Var bias = tape.variable(made({96}));
  const Var narrowing = tape.variable(made({32, 96}));

  const Var x = embedding(ids, table, position);
  const Var qkv = linear(layer_norm(x, gamma, gamma), weight, bias, Activation::gelu_tanh);
  const NormedSum sums =
      add_layer_norm(x, dropout(attention(qkv, 4), 0.1f, {.seed = 1}), gamma, gamma);
  const Var mixed = feed_forward(sums.normed, weight, bias, narrowing, gamma);
  const Tensor angles = rope_table({}, 8, 16, DType::f32, device);
  const Var gated_sum =
      gated_feed_forward(rope(mixed, 4, angles), weight, weight, narrowing) + gated(mixed, mixed);
  const Var logits = linear(rms_norm(gated_sum, gamma), table);
  const std::vector<Var> parts = split(sums.sum, std::vector<int64_t>{8, 24}, 2);
  const Var joined[] = {softmax(parts[1], 1), permute(silu(parts[0]), {0, 1, 2})};
  const Var rejoined = concat(joined, 2);
  const Var scores = matmul(rejoined, permute(rejoined, {0, 2, 1}));
  const Tensor corner = Tensor::full({1, 3, 5}, 2, DType::i64, device);
  const Var moved = scatter_add(scores, 1, corner, mul(scores, 2.0));
  const Var lower = tril(clamp(scores, -1.0, 1.0)), upper = triu(rsqrt(abs(sin(scores))));
  const Var lowest = min(add(flip(lower, -1), transpose(upper, 1, 2)), {2});
  const Var spread = mean(var(lowest, {1}));
  const Var total = add(logsumexp(repeat(unsqueeze(lowest, 0), {2, 1, 1})), spread);
  const Var decay =
      scan({clamp(scores, -0.9, 0.9), scores}, 1, [](Vars a, Vars b) -> std::vector<Var> {
        const Var carried = b[0] * a[1];
        return {a[0] * b[0], carried + b[1]};
      })[1];
  const Var ordered = mul(cumsum(sort(scores, 1).values, 2), cummax(decay, 1).values);
  const Tensor places = Tensor::full({3}, 1, DType::i64, device);
  const Var groups = index_max(scores, 1, places, slice(scores, 1, 4, 7));
  const Var written = slice_scatter(scores, slice(ordered, {{}, {.step = 2}}), {{}, {.step = -2}});
  const Var extra = add(
      sum(max(where(greater(scores, mul(scores, 0.5)), scores, neg(scores)), {1})),
      add(mean(gather(logits, -1, flat_index)), add(mean(gather(moved, 1, corner)), mean(groups))));
  const Var rest = cast(add(add(extra, total), mean(written)), DType::f32);
  const Var loss = add(cross_entropy(logits, ids), rest);
  tape.backward(add(loss, projection_cross_entropy(sums.normed, table, ids)));
  return {device.memory().peak(), device.memory().live()};
}

}  // namespace

TEST_CASE("ops on a meta device count the same bytes as on the CPU") {
  const DeviceOptions options{.threads = 1};
  CHECK(bytes_of_a_pass(Device::meta(0, options)) == bytes_of_a_pass(Device::cpu(0, options)));
}

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/autograd/op_check.h"

// Attention with grouped queries, sliding windows, documents and padding.
using namespace zg;
using namespace zg::testing;

namespace {

Tensor operand_in(const nlohmann::json& from, const char* name) {
  const auto extents = from.at(name).at("shape").get<std::vector<int64_t>>();
  return Tensor::from(from.at(name).at("values").get<std::vector<double>>(),
                      Shape(std::span(extents)), shared_device());
}

Tensor mask_tensor(const std::vector<int32_t>& values, const Shape& shape) {
  return values.empty() ? Tensor() : Tensor::from(values, shape, shared_device());
}

/// [B, tokens, heads * D] as [B, heads, tokens, D].
Var apart(const Var& x, int64_t D) {
  const Shape& s = x.shape();
  return permute(reshape(x, {s[0], s[1], s[2] / D, D}), {0, 2, 1, 3});
}

/// The call on projections, and the same on heads apart.
Var by_token(Vars in, int heads, const AttentionOptions& options) {
  return attention(in[0], in[1], in[2], heads, options);
}
Var by_head(Vars in, int heads, const AttentionOptions& options) {
  const int64_t D = in[0].shape()[2] / heads;
  const Var y = attention(apart(in[0], D), apart(in[1], D), apart(in[2], D), options);
  return reshape(permute(y, {0, 2, 1, 3}), in[0].shape());
}

/// Fewer than 10 terms below 1, in f64.
constexpr double masks_tolerance = 1e-14;

}  // namespace

TEST_CASE(
    "grouped-query heads, windows, documents and padding match PyTorch in values and gradients") {
  std::ifstream file(ZG_FIXTURES "attention.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  REQUIRE(cases.size() == 9);
  int64_t hidden_rows = 0;
  for (const nlohmann::json& c : cases) {
    const Tensor q = operand_in(c, "q"), k = operand_in(c, "k"), v = operand_in(c, "v");
    const AttentionOptions options{.causal = c.at("causal"),
                                   .window = c.at("window"),
                                   .starts = mask_tensor(c.at("starts"), {2, q.extent(1)}),
                                   .key_lengths = mask_tensor(c.at("key_lengths"), {2})};
    const int heads = c.at("heads");
    hidden_rows += c.at("hidden_rows").get<int64_t>();
    INFO("heads ", heads, ", ", k.shape().str());
    for (const auto& function : {by_token, by_head}) {
      Tape tape(shared_device());
      const std::vector<Var> in = {tape.variable(q), tape.variable(k), tape.variable(v)};
      const Var y = function(in, heads, options);
      CHECK(excess(y.value(), operand_in(c, "out").to_doubles(), masks_tolerance) < 1.0);
      const Tensor dy = operand_in(c, "dout");
      tape.backward({&y, 1}, {&dy, 1});
      const char* names[] = {"dq", "dk", "dv"};
      for (size_t i = 0; i < 3; ++i) {
        CAPTURE(names[i]);
        const Tensor expected = operand_in(c, names[i]);
        CHECK(tape.gradient(in[i]).shape() == expected.shape());
        CHECK(excess(tape.gradient(in[i]), expected.to_doubles(), masks_tolerance) < 1.0);
      }
      check_gradient([&](Tape&, Vars x) { return function(x, heads, options); }, {q, k, v});
    }
  }
  CHECK(hidden_rows == 4);  // samples' rows that see no key
}

TEST_CASE(
    "grouped-query attention with bias, ALiBi, window, key lengths and dropout passes gradcheck") {
  const Tensor q = doubles({2, 4, 6 * 3}, 1), k = doubles({2, 4, 2 * 3}, 2);
  const AttentionOptions options{.dropout = 0.3f,
                                 .key = {.seed = 3, .step = 1, .site = 9},
                                 .bias = doubles({6, 4, 4}, 3),
                                 .alibi_slopes = doubles({6}, 4, 0.0, 1.0),
                                 .window = 3,
                                 .key_lengths = mask_tensor({4, 3}, {2})};
  check_gradient([&](Tape&, Vars in) { return by_token(in, 6, options); },
                 {q, k, doubles({2, 4, 2 * 3}, 5)});
}

TEST_CASE("attention on a fused projection takes windows, documents and key lengths") {
  const Tensor qkv = doubles({2, 5, 3 * 6}, 1);
  const AttentionOptions options{.window = 2,
                                 .starts = mask_tensor({0, 0, 0, 3, 3, 0, 1, 1, 1, 1}, {2, 5}),
                                 .key_lengths = mask_tensor({5, 4}, {2})};
  const std::vector<Var> parts = split(Var(qkv), std::vector<int64_t>{6, 6, 6}, 2);
  CHECK(values_of(attention(Var(qkv), 2, options)) == values_of(by_token(parts, 2, options)));
  CHECK(values_of(attention(Var(qkv), 2, options)) != values_of(attention(Var(qkv), 2)));
  check_gradient([&](Tape&, Vars in) { return attention(in[0], 2, options); }, {qkv});
}

TEST_CASE(
    "attention masks add only their own bytes to peak memory, and a meta device predicts them") {
  const auto peak = [](const Device& device, bool masked) {
    const auto made = [&](const Shape& shape) {
      return Tensor::full(shape, 0.5, DType::bf16, device);
    };
    AttentionOptions options;
    if (masked) {
      options.window = 100;
      options.starts = Tensor::zeros({2, 700}, DType::i32, device);
      options.key_lengths = Tensor::full({2}, 600, DType::i32, device);
    }
    Tape tape(device);
    const std::vector<Var> in = {tape.variable(made({2, 700, 6 * 16})),
                                 tape.variable(made({2, 700, 2 * 16})),
                                 tape.variable(made({2, 700, 2 * 16}))};
    const Var y = by_token(in, 6, options);
    const Tensor dy = made(y.shape());
    tape.backward({&y, 1}, {&dy, 1});
    return device.memory().peak();
  };
  const DeviceOptions options{.threads = 2};
  const int64_t without = peak(Device::cpu(0, options), false);
  const int64_t with = peak(Device::cpu(0, options), true);
  CHECK(with - without >= (2 * 700 + 2) * 4);
  CHECK(with - without < (2 * 700 + 2) * 4 + 1024);  // rounded up
  CHECK(peak(Device::meta(0, options), true) == with);
  CHECK(peak(Device::meta(0, options), false) == without);
}

TEST_CASE("attention refuses groups and masks that do not fit") {
  const Var q(doubles({2, 3, 12}, 1)), k(doubles({2, 3, 9}, 1)), wide(doubles({2, 3, 24}, 1));
  const auto message = [&](const Var& keys, int heads, const AttentionOptions& options) {
    return message_of<Error>([&] { attention(q, keys, keys, heads, options); });
  };
  CHECK(message(k, 5, {}) ==
        "attention: q has shape [2, 3, 12]; expected a last axis divisible by heads = 5");
  CHECK(message(k, 6, {}) ==
        "attention: k has shape [2, 3, 9]; expected [2, keys, kv_heads * 2]: heads of as many "
        "elements as q's");
  CHECK(message(k, 4, {}) ==
        "attention: k has shape [2, 3, 9]; expected a number of heads that divides the 4 of q");
  CHECK(contains(message(wide, 4, {}), "expected a number of heads that divides the 4 of q"));
  CHECK_ERROR(ShapeError, "attention: v has shape [2, 3, 9]; expected the shape of k, [2, 3, 12]",
              attention(q, q, k, 4, {}));
  const Var heads(doubles({2, 4, 3, 5}, 1)), three(doubles({2, 3, 3, 5}, 1));
  CHECK(message_of<ShapeError>([&] { attention(heads, three, three, {}); }) ==
        "attention: k has shape [2, 3, 3, 5]; expected a number of heads that divides the 4 of q");
  CHECK(message(q, 4, {.window = -1}) == "attention: window -1; expected 0, or more if causal");
  CHECK(message(q, 4, {.causal = false, .window = 2}) ==
        "attention: window 2 without causal; expected 0, or more if causal");
  const Tensor zeros = mask_tensor({0, 0, 0, 0, 0, 0}, {2, 3});
  CHECK(message(q, 4, {.causal = false, .starts = zeros}) ==
        "attention: starts with full attention of 3 queries to 3 keys; expected causal attention "
        "to as many keys as queries");
  CHECK(contains(message(Var(doubles({2, 5, 12}, 1)), 4, {.starts = zeros}),
                 "causal attention of 3 queries to 5 keys"));
  CHECK(message(q, 4, {.starts = mask_tensor({0, 0, 0}, {1, 3})}) ==
        "attention: starts has shape [1, 3]; expected [2, 3]");
  CHECK(message(q, 4, {.key_lengths = doubles({2}, 1)}) ==
        "attention: key_lengths holds f64; expected i32; try cast");
  CHECK(message(q, 4, {.key_lengths = mask_tensor({3, 4}, {2})}) ==
        "attention_forward: key_lengths holds 4 at element 1; expected 0 to 3");
}

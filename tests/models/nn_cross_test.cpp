// Cross-attention and padding of nn::Attention.
#include "tests/autograd/op_check.h"
#include "tests/support/error_message.h"
#include "tests/support/normal_weights.h"
#include "zerograd/models/nn.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct CrossLayer : nn::Module {
  nn::Attention attention;
  explicit CrossLayer(const nn::AttentionConfig& config) : attention(this, "cross", config) {}
};

Values cross_values(const nn::Module& model) {
  return Values(model.store(), normal_weights(model.store(), 0.5f), shared_device(),
                {.compute = DType::f64});
}

const nn::AttentionConfig cross_config = {
    .width = 6, .heads = 3, .bias = true, .out_bias = true, .causal = false};

Tensor lengths_of(const std::vector<int32_t>& lengths) {
  return Tensor::from(lengths, {static_cast<int64_t>(lengths.size())}, shared_device());
}

Tensor values_from(uint64_t seed, const Shape& shape) {
  return random_tensor(shape, DType::f64, shared_device(), seed);
}

}  // namespace

TEST_CASE("cross-attention is softmax(q k^T) v of its projections, up to each sample's length") {
  const CrossLayer layer(cross_config);
  Values values = cross_values(layer);
  Tape tape(shared_device(), &values, TapeMode::inference);
  const Var x = tape.constant(values_from(1, {2, 3, 6})), memory = values_from(2, {2, 5, 6});
  const std::vector<int32_t> lengths = {5, 2};
  const Var got = layer.attention(x, {.values = memory, .lengths = lengths_of(lengths)});
  const auto project = [&](const Var& input, const char* name) {
    const std::string full = std::string("cross") + name;
    return linear(input, tape.parameter(*layer.store().find(full + ".weight")),
                  tape.parameter(*layer.store().find(full + ".bias")));
  };
  for (int64_t b = 0; b < 2; ++b) {
    const Var seen = slice(slice(memory, 0, b, b + 1), 1, 0, lengths[static_cast<size_t>(b)]);
    const auto heads = [](const Var& y) {
      return permute(reshape(y, {1, y.shape()[1], 3, 2}), {0, 2, 1, 3});
    };
    const Var q = heads(project(slice(x, 0, b, b + 1), ".q_proj"));
    const Var k = heads(project(seen, ".k_proj")), v = heads(project(seen, ".v_proj"));
    const Var weights = softmax(matmul(q, transpose(k, 2, 3)) * (1.0 / std::sqrt(2.0)));
    const Var mixed = reshape(permute(matmul(weights, v), {0, 2, 1, 3}), {1, 3, 6});
    CHECK(excess(slice(got, 0, b, b + 1).value(), project(mixed, ".o_proj").value().to_doubles(),
                 1e-12) < 1.0);
  }
}

TEST_CASE("gradients of cross-attention agree with finite differences, for x and for the memory") {
  const CrossLayer layer(cross_config);
  Values values = cross_values(layer);
  const Tensor lengths = lengths_of({5, 2});
  const auto cross = [&](std::span<const Var> inputs) {
    const Var y = layer.attention(inputs[0], {.values = inputs[1], .lengths = lengths});
    return sum(y * y);
  };
  const Tensor inputs[] = {values_from(3, {2, 3, 6}), values_from(4, {2, 5, 6})};
  Tape tape(shared_device(), &values);
  const Var x = tape.variable(inputs[0]), memory = tape.variable(inputs[1]);
  const Var both[] = {x, memory};
  tape.backward(cross(both));
  const std::vector<double> exact[] = {tape.gradient(x).to_doubles(),
                                       tape.gradient(memory).to_doubles()};
  const auto loss = [&](const Tensor& first, const Tensor& second) {
    Tape inference(shared_device(), &values, TapeMode::inference);
    const Var given[] = {inference.constant(first), second};
    return cross(given).value().item();
  };
  constexpr double step = 1e-6;
  for (size_t side : {0, 1}) {
    std::vector<double> at = inputs[side].to_doubles();
    for (size_t i = 0; i < at.size(); ++i) {
      const auto moved_by = [&](double delta) {
        std::vector<double> changed = at;
        changed[i] += delta;
        const Tensor tensor = Tensor::from(changed, inputs[side].shape(), shared_device());
        return side == 0 ? loss(tensor, inputs[1]) : loss(inputs[0], tensor);
      };
      const double slope = (moved_by(step) - moved_by(-step)) / (2 * step);
      REQUIRE(std::fabs(slope - exact[side][i]) < 1e-7);
    }
  }
  // The second sample has a memory of two positions; the others have no effect.
  for (size_t i = 30 + 2 * 6; i < 60; ++i) CHECK(exact[1][i] == 0.0);
}

TEST_CASE("a memory cache gives cross-attention's results, also for several rows of a sample") {
  const CrossLayer layer(cross_config);
  Values values = cross_values(layer);
  Tape tape(shared_device(), &values, TapeMode::inference);
  const Tensor memory = values_from(6, {2, 5, 6}), lengths = lengths_of({5, 2});
  nn::MemoryCache cache(1, memory, lengths);
  const nn::Memory cached{.cache = &cache};
  const auto expect = [&](const Var& got, const Var& x, const std::vector<int64_t>& samples) {
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      const Var own = slice(memory, 0, samples[i], samples[i] + 1);
      const Var length = slice(lengths, 0, samples[i], samples[i] + 1);
      const Var alone =
          layer.attention(slice(x, 0, row, row + 1), {.values = own, .lengths = length.value()});
      CHECK(excess(slice(got, 0, row, row + 1).value(), alone.value().to_doubles(), 1e-12) < 1.0);
    }
  };
  const Var first = tape.constant(values_from(7, {2, 3, 6})),
            beams = tape.constant(values_from(8, {6, 1, 6}));
  expect(layer.attention(first, cached), first, {0, 1});
  expect(layer.attention(beams, cached), beams, {0, 0, 0, 1, 1, 1});
  CHECK(cache.rows() == 2);
  const std::vector<int64_t> order = {1, 1, 0};
  cache.reorder(order);
  CHECK(cache.rows() == 3);
  expect(layer.attention(beams, cached), beams, {1, 1, 1, 1, 0, 0});
  const Var four = tape.constant(values_from(9, {4, 1, 6}));
  CHECK(contains(message_of<ConfigError>([&] { layer.attention(four, cached); }),
                 "4 rows to a memory of 3 rows; expected a multiple of them"));
  const std::vector<int64_t> beyond = {3};
  CHECK(contains(message_of<ConfigError>([&] { cache.reorder(beyond); }),
                 "memory_cache: reorder: there is no row 3; expected rows 0 to 2"));
  CHECK(contains(message_of<ConfigError>([&] { cache.reorder({}); }), "reorder to no rows"));
}

TEST_CASE("a layer that is causal, fused or turned, and a recording tape, are refused") {
  const auto message = [](const nn::AttentionConfig& config, TapeMode mode, bool is_cached) {
    const CrossLayer layer(config);
    Values values = cross_values(layer);
    Tape tape(shared_device(), &values, mode);
    const Var x = tape.constant(values_from(1, {1, 2, 6}));
    nn::MemoryCache cache(1, values_from(2, {1, 4, 6}));
    const nn::Memory memory = is_cached ? nn::Memory{.cache = &cache} : nn::Memory{};
    return message_of<ConfigError>([&] { layer.attention(x, memory); });
  };
  nn::AttentionConfig config = cross_config;
  config.causal = true;
  CHECK(contains(message(config, TapeMode::inference, true), "with causal true; expected"));
  config = cross_config;
  config.rope = RopeOptions();
  CHECK(contains(message(config, TapeMode::inference, true), "with rope; expected"));
  config = cross_config;
  config.fused = QKVOrder::by_part;
  CHECK(contains(message(config, TapeMode::inference, true), "with fused; expected"));
  CHECK(
      contains(message(cross_config, TapeMode::record, true), "expected a tape in inference mode"));
  CHECK(contains(message(cross_config, TapeMode::inference, false), "a memory without values"));
  CHECK(contains(message_of<ConfigError>([] {
                   nn::MemoryCache(1, values_from(1, {2, 3, 6}), lengths_of({1, 1, 1}));
                 }),
                 "lengths [3] of memory [2, 3, 6]; expected [2]"));
}

TEST_CASE("padding of self-attention is hidden, and a pass with a cache refuses it") {
  const CrossLayer layer(cross_config);
  Values values = cross_values(layer);
  Tape tape(shared_device(), &values, TapeMode::inference);
  const Var x = tape.constant(values_from(5, {1, 5, 6}));
  const Var expected = layer.attention(slice(x, 1, 0, 3));
  const Tape::With padded(tape, nn::Pass{.key_lengths = lengths_of({3})});
  CHECK(excess(slice(layer.attention(x), 1, 0, 3).value(), expected.value().to_doubles(), 1e-12) <
        1.0);
  nn::AttentionConfig config = cross_config;
  config.causal = true;
  const CrossLayer causal(config);
  Values other = cross_values(causal);
  Tape second(shared_device(), &other, TapeMode::inference);
  nn::KeyValueCache cache(1, 9);
  const Tape::With pass(second, nn::Pass{.cache = &cache, .key_lengths = lengths_of({3})});
  CHECK(contains(message_of<ConfigError>([&] { causal.attention(second.constant(x.value())); }),
                 "key-value cache and key_lengths"));
}

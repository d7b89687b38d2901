#include "zerograd/models/gpt/generate.h"

#include <algorithm>

#include "tests/models/gpt/gpt_case.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

using Rows = std::vector<std::vector<int32_t>>;
const SamplingOptions greedy{.temperature = 0.0};

GPTConfig generating(GPTConfig config) {
  config.vocabulary = 31;
  config.block_size = 9;
  return config;
}
GPTConfig generating_config() { return generating(tiny_config()); }

struct DecoderSetting {
  Device device;
  DType dtype;
  GPTConfig config;

  std::string text() const {
    return std::string(level_of(device)) + " " + name_of(dtype) + " " + text_of(config);
  }
};

/// Every level with each dtype and decoder.
std::vector<DecoderSetting> everywhere(std::initializer_list<DType> dtypes) {
  std::vector<DecoderSetting> places;
  for (const Device& device : devices_at_every_level(/*threads=*/1))
    for (DType dtype : dtypes)
      for (const GPTConfig& config : tiny_decoders())
        places.push_back({device, dtype, generating(config)});
  return places;
}

Rows generated(GPTCase& model, const Rows& prompts, int64_t length,
               const SamplingOptions& options) {
  return generate(
      model.gpt, [&] { return model.tape(TapeMode::inference); }, prompts, length, options);
}

/// minGPT's loop: crop to the block size, all logits from scratch, the most likely token.
Rows recomputed(GPTCase& model, Rows rows, int64_t length) {
  const int64_t V = model.gpt.config().vocabulary;
  for (int64_t i = 0; i < length; ++i)
    for (std::vector<int32_t>& row : rows) {
      const int64_t T = std::min(static_cast<int64_t>(row.size()), model.gpt.config().block_size);
      const std::vector<int32_t> window(row.end() - T, row.end());
      Tape tape = model.tape(TapeMode::inference);
      const std::vector<double> logits =
          model.gpt.logits(tape, Tensor::from(window, {1, T}, model.device)).value().to_doubles();
      const auto last = logits.end() - V;
      row.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
    }
  return rows;
}

}  // namespace

TEST_CASE("generate with a key-value cache gives the same tokens as recomputing all logits") {
  for (const DecoderSetting& place : everywhere({DType::f32, DType::f64})) {
    CAPTURE(place.text());
    GPTCase model(place.config, place.device, place.dtype, /*spread=*/15.0);
    // From inside the block across its border; from one token; from beyond the border.
    for (const Rows& prompts : {Rows{{3, 14, 15, 9}, {26, 5, 3, 5}}, Rows{{30}, {0}, {7}},
                                Rows{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}}) {
      const Rows rows = generated(model, prompts, 12, greedy);
      CHECK(rows == recomputed(model, prompts, 12));
      CHECK(rows[0].size() == prompts[0].size() + 12);
    }
  }
}

TEST_CASE(
    "next_logits with a cache equals the last row of logits to rounding, however tokens are fed") {
  for (const DecoderSetting& place : everywhere({DType::f64, DType::f32, DType::bf16})) {
    CAPTURE(place.text());
    const Device& device = place.device;
    GPTCase model(place.config, device, place.dtype, 10.0);
    const Tensor ids = random_ids(2, 9, 31, device, 1);
    Tape tape = model.tape(TapeMode::inference);
    const std::vector<double> all = model.gpt.logits(tape, ids).value().to_doubles();
    KeyValueCache cache(model.gpt.config());
    const auto feed = [&](int64_t begin, int64_t end) {
      std::vector<int32_t> part;
      const std::vector<int32_t> values = ids.to_host<int32_t>();
      for (int64_t b = 0; b < 2; ++b)
        part.insert(part.end(), values.begin() + b * 9 + begin, values.begin() + b * 9 + end);
      const Tensor logits =
          model.gpt.next_logits(tape, Tensor::from(part, {2, end - begin}, device), cache);
      CHECK(logits.shape() == Shape{2, 31});
      CHECK(cache.length() == end);
      std::vector<double> expected;
      for (int64_t b = 0; b < 2; ++b) {
        const auto row = all.begin() + (b * 9 + end - 1) * 31;
        expected.insert(expected.end(), row, row + 31);
      }
      // Only attention adds in another order: two layers each pass on a rounding or two of
      // numbers below 4, times weights that add up to less than 4.
      CHECK(excess(logits, expected, 2 * 2 * 4 * 4 * unit_roundoff(place.dtype)) < 1.0);
    };
    feed(0, 4);
    feed(4, 5);
    feed(5, 9);
    cache.truncate(2);
    feed(2, 7);
    cache.clear();
    feed(0, 9);
  }
}

TEST_CASE("generate takes a context up to the positions of a model with rotary positions") {
  GPTConfig config = generating(GPTConfig::of(Family::llama));
  config.layers = config.heads = 2;
  config.width = 8;
  config.positions = 30;
  GPTCase model(config, Device::cpu(0, {.threads = 1}), DType::f32, 15.0);
  config.block_size = 30;
  GPTCase whole(config, Device::cpu(0, {.threads = 1}), DType::f32, 15.0);
  const Rows prompt = {{7, 1, 30, 4, 4, 9, 12, 3, 3, 18, 2}};
  const Rows rows = generated(model, prompt, 30, greedy);
  CHECK(rows == generated(whole, prompt, 30, greedy));  // 41 tokens: the last 30 are the context
  CHECK(rows == recomputed(whole, prompt, 30));
}

TEST_CASE("generate turns the whole text by the long factors once it needs them") {
  GPTConfig config = GPTConfig::of(Family::phi3);
  config.layers = config.heads = 2;
  config.width = 16;
  config.vocabulary = 31;
  config.block_size = 24;
  config.rope.scaling = RopeScaling::longrope;
  config.rope.original_positions = 7;
  config.rope.factor = 4.0;
  config.rope.short_factors = {1.0, 1.0, 1.0, 1.0};
  config.rope.long_factors = {1.5, 4.0, 9.0, 25.0};
  GPTCase model(config, Device::cpu(0, {.threads = 1}), DType::f32, 15.0);
  for (const Rows& prompt : {Rows{{3, 14, 15, 9}}, Rows{{3, 14, 15, 9, 26, 5, 3, 5, 8}}})
    CHECK(generated(model, prompt, 12, greedy) == recomputed(model, prompt, 12));
}

TEST_CASE("sampled tokens depend on the seed and the row, not on the other rows") {
  GPTCase model(generating_config(), Device::cpu(0, {.threads = 1}), DType::f32, 5.0);
  const Rows both = generated(model, {{1, 2}, {1, 2}}, 20, {.seed = 1});
  CHECK(both[0] == generated(model, {{1, 2}}, 20, {.seed = 1})[0]);
  CHECK(both[0] != both[1]);
  CHECK(both[0] != generated(model, {{1, 2}}, 20, {.seed = 2})[0]);
}

TEST_CASE("generate passes each new token of the first row to its callback") {
  GPTCase model(generating_config());
  std::vector<int32_t> seen{5};
  const Rows rows = generate(
      model.gpt, [&] { return model.tape(TapeMode::inference); }, {{5}, {6}}, 7, {},
      [&](int32_t token) { seen.push_back(token); });
  CHECK(seen == rows[0]);
  CHECK(generated(model, {{5}, {6}}, 0, {}) == Rows{{5}, {6}});
}

TEST_CASE("a row ends with a token of ends, and generate returns when all rows have ended") {
  GPTCase model(generating_config(), Device::cpu(0, {.threads = 1}), DType::f32, 5.0);
  const Rows prompts = {{1, 2}, {3, 4}};
  const Rows endless = generated(model, prompts, 20, {.seed = 1});
  // The first row ends with its fifth new token, or with an earlier one that is the same.
  const int32_t end = endless[0][6];
  const auto first = std::find(endless[0].begin() + 2, endless[0].end(), end);
  const auto other = std::find(endless[1].begin() + 2, endless[1].end(), end);
  std::vector<int32_t> seen = prompts[0];
  const Rows rows = generate(
      model.gpt, [&] { return model.tape(TapeMode::inference); }, prompts, 20,
      {.seed = 1, .ends = {end}}, [&](int32_t token) { seen.push_back(token); });
  CHECK(seen == std::vector<int32_t>(endless[0].begin(), first + 1));
  const auto length = [&](const std::vector<int32_t>& row, auto place) {
    return static_cast<size_t>(place - row.begin()) + (place != row.end());
  };
  const size_t longest = std::max(length(endless[0], first), length(endless[1], other));
  for (size_t row = 0; row < 2; ++row) {
    std::vector<int32_t> expected(endless[row].begin(), row == 0 ? first : other);
    expected.resize(longest, end);
    CHECK(rows[row] == expected);
  }
  // A prompt may hold such a token.
  CHECK(generated(model, {{1, end}}, 3, {.seed = 1, .ends = {end}})[0].size() > 2);
}

TEST_CASE("generate and next_logits refuse invalid prompts, options and cache lengths") {
  GPTCase model(generating_config());
  CHECK_THROWS_AS(generated(model, {}, 3, {}), ConfigError);
  CHECK_THROWS_AS(generated(model, {{}}, 3, {}), ConfigError);
  CHECK_THROWS_AS(generated(model, {{1}, {1, 2}}, 3, {}), ConfigError);
  CHECK_THROWS_AS(generated(model, {{1}}, -1, {}), ConfigError);
  CHECK_THROWS_AS(generated(model, {{1}}, 3, {.top_k = -2}), ConfigError);
  CHECK_THROWS_AS(generated(model, {{31}}, 3, {}), ShapeError);

  KeyValueCache cache(model.gpt.config());
  Tape tape = model.tape(TapeMode::inference), recording = model.tape();
  const Device& device = model.device;
  model.gpt.next_logits(tape, random_ids(2, 6, 31, device, 1), cache);
  CHECK_THROWS_WITH_AS(model.gpt.next_logits(tape, random_ids(2, 4, 31, device, 1), cache),
                       "next_logits: the cache holds 6 of 9 positions, got 4 more; clear it and "
                       "begin with a later window",
                       ConfigError);
  CHECK_THROWS_AS(model.gpt.next_logits(tape, random_ids(3, 1, 31, device, 1), cache), ShapeError);
  CHECK_THROWS_AS(model.gpt.next_logits(tape, random_ids(2, 1, 31, device, 1).view({2}), cache),
                  ShapeError);
  CHECK_THROWS_AS(model.gpt.next_logits(recording, random_ids(2, 1, 31, device, 1), cache),
                  TapeError);
  CHECK_THROWS_AS(cache.truncate(7), ConfigError);
  CHECK(cache.length() == 6);
}

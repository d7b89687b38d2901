#include "zerograd/models/seq2seq/seq2seq.h"

#include "tests/models/seq2seq/seq2seq_case.h"
#include "tests/support/error_message.h"
#include "zerograd/models/seq2seq/seq2seq_generate.h"

using namespace zg;
using namespace zg::testing;
using namespace zg::models;

namespace {

using TextRows = std::vector<std::vector<int32_t>>;

const TextRows some_sources = {{3, 9, 4, 10, 2}, {8, 2}, {5, 7, 6, 2}};
const TextRows some_targets = {{4, 2}, {9, 3, 10, 5, 2}, {6, 2}};

Seq2SeqBatch some_batch(const Seq2SeqConfig& config, const Device& device) {
  return padded_batch(some_sources, some_targets, config.tokens, device);
}

struct LossAndGradients {
  double loss = 0.0;
  std::vector<std::vector<double>> gradients;
  bool operator==(const LossAndGradients&) const = default;
};

LossAndGradients backward_of(Seq2SeqCase& test, const Seq2SeqBatch& batch,
                             const ForwardPosition& place, const Seq2SeqLossOptions& options = {}) {
  test.source.gradients.clear();
  Tape tape = test.tape();
  const Var loss = test.model.loss(tape, batch, place, options);
  LossAndGradients result{.loss = loss.value().item(), .gradients = {}};
  tape.backward(loss);
  for (const auto& parameter : test.store.parameters())
    result.gradients.push_back(test.source.gradients[parameter.get()]);
  return result;
}

}  // namespace

TEST_CASE("the gradient of an encoder-decoder model agrees with finite differences in f64") {
  const Device device = Device::cpu();
  const ForwardPosition place{.seed = 9, .step = 4, .first_sample = 12};
  for (const Seq2SeqConfig& config : tiny_seq2seqs()) {
    CAPTURE(std::string(name_of(config.family)));
    Seq2SeqCase test(config, device, DType::f64);
    test.spread(10.0);
    const Seq2SeqBatch batch = some_batch(config, device);
    const Seq2SeqLossOptions smoothed{.label_smoothing = 0.1};
    const LossAndGradients exact = backward_of(test, batch, place, smoothed);
    const auto loss = [&] {
      Tape tape = test.tape();
      return test.model.loss(tape, batch, place, smoothed).value().item();
    };
    for (const auto& parameter : test.store.parameters()) {
      if (!parameter->trainable) continue;
      CAPTURE(parameter->name);
      CHECK(distance_from_slopes(test.source.at_rest(*parameter),
                                 exact.gradients[static_cast<size_t>(parameter->index)],
                                 /*stride=*/7, loss) < 1e-7);
    }
  }
}

TEST_CASE("checkpointing an encoder-decoder model changes no bit") {
  for (const Seq2SeqConfig& config : tiny_seq2seqs()) {
    Seq2SeqCase test(config);
    const Seq2SeqBatch batch = some_batch(config, test.device);
    const ForwardPosition place{.seed = 1, .step = 2, .first_sample = 3};
    const LossAndGradients kept = backward_of(test, batch, place);
    CHECK((backward_of(test, batch, place, {.checkpointing = true}) == kept));
    CHECK_FALSE((backward_of(test, batch, {.seed = 2, .step = 2, .first_sample = 3}) == kept));
  }
}

TEST_CASE("hooks see every hidden state of an encoder-decoder and change what follows") {
  for (const Seq2SeqConfig& config : tiny_seq2seqs()) {
    CAPTURE(std::string(name_of(config.family)));
    Seq2SeqCase test(config);
    const Seq2SeqBatch batch = some_batch(config, test.device);
    const ForwardPosition place{.seed = 1, .step = 2, .first_sample = 3};
    const LossAndGradients plain = backward_of(test, batch, place);
    for (const bool checkpointing : {false, true}) {
      CAPTURE(checkpointing);
      std::vector<int64_t> encoder, decoder;
      Var last;
      const Seq2SeqLossOptions options{.checkpointing = checkpointing,
                                       .encoder_hook =
                                           [&](int64_t layer, const Var& x) {
                                             encoder.push_back(layer);
                                             CHECK(x.shape() == Shape{3, 5, config.width});
                                             return x;
                                           },
                                       .decoder_hook =
                                           [&](int64_t layer, const Var& x) {
                                             decoder.push_back(layer);
                                             return last = x;
                                           }};
      CHECK((backward_of(test, batch, place, options) == plain));
      CHECK(encoder == std::vector<int64_t>{0, 1, 2});
      CHECK(decoder == std::vector<int64_t>{0, 1, 2});
      const auto hidden = [&](double factor) {
        Tape tape = test.tape();
        const nn::BlockHook scale = [&](int64_t layer, const Var& x) {
          return layer == 1 ? mul(x, factor) : x;
        };
        return test.model.hidden(tape, batch, place, {.decoder_hook = scale})
            .value()
            .to_host<float>();
      };
      CHECK(hidden(1.0) != hidden(2.0));
      if (!config.pre_norm) CHECK(hidden(1.0) == last.value().to_host<float>());
    }
  }
}

TEST_CASE("the ids in the padding of a source change no bit, and its length only the rounding") {
  for (const Device& device : devices_at_every_level())
    for (const Seq2SeqConfig& config : tiny_seq2seqs()) {
      CAPTURE(level_of(device));
      Seq2SeqCase test(config, device);
      test.spread(10.0);
      Tape tape = test.tape(TapeMode::inference);
      const auto wide = [&](int32_t padding) {
        Seq2SeqBatch batch = padded_batch(some_sources, some_targets, config.tokens, device, 8);
        std::vector<int32_t> ids = batch.source.to_host<int32_t>();
        for (size_t i = 0; i < ids.size(); ++i)
          if (i % 8 >= some_sources[i / 8].size()) ids[i] = padding;
        batch.source = Tensor::from(ids, batch.source.shape(), device);
        return test.model.logits(tape, batch).value();
      };
      CHECK(same_bits(wide(7), wide(0)));
      // A sum over eight products of numbers near 1 has an error of about 8 x 2^-24. There are
      // about ten sums one after another.
      constexpr double rounding = 10 * 8 * 0x1p-24;
      const Tensor logits = test.model.logits(tape, some_batch(config, device)).value();
      CHECK(excess(wide(0), logits.to_doubles(), rounding) < 1.0);
      for (size_t row = 0; row < some_sources.size(); ++row) {
        const auto at = static_cast<int64_t>(row);
        const auto seen = static_cast<int64_t>(some_targets[row].size());
        const Var expected = slice(slice(logits, 0, at, at + 1), 1, 0, seen);
        Seq2SeqBatch alone =
            padded_batch({some_sources[row]}, {some_targets[row]}, config.tokens, device);
        CHECK(excess(test.model.logits(tape, alone).value(), expected.value().to_doubles(),
                     rounding) < 1.0);
        alone.source_lengths = {};
        CHECK(excess(test.model.logits(tape, alone).value(), expected.value().to_doubles(),
                     rounding) < 1.0);
      }
    }
}

TEST_CASE("shifted_right makes the decoder's input as transformers does") {
  const Device device = Device::cpu();
  const std::vector<int32_t> labels = {4, 5, 2, 7, -100, 3};
  const Tensor shifted =
      shifted_right(Tensor::from(labels, {2, 3}, device), {.pad = 0, .decoder_start = 1});
  CHECK((shifted.shape() == Shape{2, 3}));
  CHECK(shifted.to_host<int32_t>() == std::vector<int32_t>{1, 4, 5, 1, 7, 0});
}

TEST_CASE("logits of tokens fed through the caches match those of the whole target") {
  for (const Seq2SeqConfig& config : tiny_seq2seqs()) {
    Seq2SeqCase test(config);
    test.spread(10.0);
    Tape tape = test.tape(TapeMode::inference);
    const Seq2SeqBatch batch = some_batch(config, test.device);
    const Tensor whole = test.model.logits(tape, batch).value();
    const Tensor ids = shifted_right(batch.labels, config.tokens);
    const Var memory = test.model.encode(tape, batch.source, batch.source_lengths);
    Seq2SeqCache cache(config, memory, batch.source_lengths);
    CHECK(cache.capacity() == config.positions);
    for (const int64_t tokens : {2, 1, 1, 1}) {
      const int64_t begin = cache.length(), last = begin + tokens - 1;
      const Tensor next = slice(ids, 1, begin, begin + tokens).value();
      const Tensor logits = test.model.next_logits(tape, next, cache);
      const Tensor expected = slice(whole, 1, last, last + 1).value();
      CHECK(excess(logits, expected.to_doubles(), 1e-5) < 1.0);
    }
    CHECK(cache.length() == 5);
  }
}

TEST_CASE("a cache whose rows were reordered gives the logits of the rows that they continue") {
  const Seq2SeqConfig config = tiny_seq2seqs()[0];
  Seq2SeqCase test(config);
  test.spread(10.0);
  Tape tape = test.tape(TapeMode::inference);
  const Device& device = test.device;
  const Seq2SeqBatch batch = padded_batch(some_sources, {}, config.tokens, device);
  const Var memory = test.model.encode(tape, batch.source, batch.source_lengths);
  // The tokens of each row so far, and the source to which it belongs.
  struct Row {
    size_t source;
    std::vector<int32_t> tokens;
  };
  std::vector<Row> rows;
  for (size_t source = 0; source < some_sources.size(); ++source) rows.push_back({source, {}});
  Seq2SeqCache cache(config, memory, batch.source_lengths);
  // Beams of each source; beams exchanged; sources dropped; uneven numbers of rows.
  const std::vector<std::vector<int64_t>> orders = {
      {0, 1, 2}, {0, 0, 1, 1, 2, 2}, {1, 0, 2, 2, 5, 4}, {4, 5, 0, 1}, {3, 0, 0, 1, 2}};
  int32_t token = 1;
  for (const std::vector<int64_t>& order : orders) {
    std::vector<Row> next;
    std::vector<int32_t> ids;
    for (const int64_t from : order) {
      next.push_back(rows[static_cast<size_t>(from)]);
      token = token % 10 + 1;
      next.back().tokens.push_back(token);
      ids.push_back(token);
    }
    rows = next;
    cache.reorder(order);
    REQUIRE(cache.rows() == static_cast<int64_t>(order.size()));
    const Tensor logits =
        test.model.next_logits(tape, Tensor::from(ids, {cache.rows(), 1}, device), cache);
    for (size_t i = 0; i < rows.size(); ++i) {
      Seq2SeqBatch alone = padded_batch({some_sources[rows[i].source]}, {}, config.tokens, device);
      const auto T = static_cast<int64_t>(rows[i].tokens.size());
      alone.decoder_ids = Tensor::from(rows[i].tokens, {1, T}, device);
      const Var whole = test.model.logits(tape, alone);
      const std::vector<double> expected = slice(whole, 1, T - 1, T).value().to_doubles();
      CHECK(excess(slice(logits, 0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1).value(),
                   expected, 1e-5) < 1.0);
    }
  }
  const std::vector<int64_t> beyond = {0, 5};
  CHECK_ERROR(ConfigError, "there is no row 5; expected rows 0 to 4", cache.reorder(beyond));
}

TEST_CASE("generation with a limit above the model's positions, and misfit batches, are refused") {
  const Seq2SeqConfig config = tiny_seq2seqs()[0];
  Seq2SeqCase test(config);
  const auto make_tape = [&] { return test.tape(TapeMode::inference); };
  BeamOptions options = beam_options_of(config);
  options.max_length = 9;
  CHECK_ERROR(ConfigError,
              "up to 9 tokens; expected at most the model's 8 positions; try max_length 8",
              generate(test.model, make_tape, {{3}}, options));
  options.max_new_tokens = 8;
  CHECK_ERROR(ConfigError, "the model's 8 positions; try max_new_tokens 7",
              generate(test.model, make_tape, {{3}}, options));
  Tape tape = make_tape();
  const auto batch = [&](const TextRows& sources, const TextRows& targets, int64_t length) {
    return message_of<ConfigError>(
        [&] { padded_batch(sources, targets, config.tokens, test.device, length); });
  };
  CHECK(contains(batch({{1}, {2}}, {{1}}, 0), "2 sources and 1 targets"));
  CHECK(contains(batch({{1}, {}}, {}, 0), "a source without tokens"));
  CHECK(contains(batch({{1, 2, 3}}, {}, 2), "a source of 3 tokens; expected at most 2"));
  const Tensor wide = Tensor::zeros({1, 9}, DType::i32, test.device);
  CHECK_ERROR(ShapeError, "source [1, 9]; expected [B, T] with T from 1 to 8",
              test.model.encode(tape, wide));
  CHECK_ERROR(ShapeError, "labels absent",
              test.model.loss(tape, {.source = slice(wide, 1, 0, 4).value()}, {}));
  CHECK_ERROR(ShapeError, "seq2seq: labels [1, 4] of sources [2, 4]; expected as many rows",
              test.model.loss(tape,
                              {.source = Tensor::zeros({2, 4}, DType::i32, test.device),
                               .labels = slice(wide, 1, 0, 4).value()},
                              {}));
  const Var memory = test.model.encode(tape, slice(wide, 1, 0, 4).value());
  Seq2SeqCache cache(config, memory);
  CHECK_ERROR(ConfigError, "ids of 2 rows for a cache of 1 rows",
              test.model.next_logits(tape, Tensor::zeros({2, 1}, DType::i32, test.device), cache));
  Tape recording = test.tape();
  CHECK_ERROR(
      TapeError, "expected a tape in inference mode",
      test.model.next_logits(recording, Tensor::zeros({1, 1}, DType::i32, test.device), cache));
}

TEST_CASE("presets have the published sizes, and invalid ones are refused by field") {
  const auto numel = [](const char* name) {
    ParameterStore store;
    const Seq2Seq model(store, Seq2SeqConfig::preset(name));
    return store.numel() - model.config().vocabulary;  // final_logits_bias is a buffer
  };
  CHECK(numel("blenderbot-400m") == 364802560);
  CHECK(numel("bart-base") == 139420416);
  CHECK(numel("bart-large") == 406291456);
  CHECK(contains(message_of<ConfigError>([] { Seq2SeqConfig::preset("bart"); }),
                 "model type: expected one of blenderbot-400m, blenderbot-3b, bart-base, "
                 "bart-large, got 'bart'"));
  const auto refused = [](auto change) {
    Seq2SeqConfig config = tiny_seq2seqs()[0];
    change(config);
    return message_of<ConfigError>([&] { validate(config); });
  };
  CHECK(contains(refused([](auto& c) { c.encoder_heads = 4; }),
                 "encoder_heads: expected a divisor of the width 6, got 4"));
  CHECK(contains(refused([](auto& c) { c.tokens.pad = 11; }),
                 "tokens.pad: expected an id from 0 to 10, got 11"));
  CHECK(
      contains(refused([](auto& c) { c.dropout = 1.0f; }), "dropout: expected a number in [0, 1)"));
  CHECK(
      contains(refused([](auto& c) { c.stddev = INFINITY; }), "stddev: expected a number from 0"));
  CHECK(contains(refused([](auto& c) { c.mlp = nn::MlpKind::gated_silu; }),
                 "mlp: expected gelu_erf or gelu_tanh, got gated_silu"));
  CHECK(contains(refused([](auto& c) { c.positions = 0; }),
                 "positions: expected 1 to 2147483647, got 0"));
}

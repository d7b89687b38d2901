// Encoder-decoder models whose layers are divided among tensor ranks: the numbers of one rank.

#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include "tests/models/gpt/gpt_case.h"
#include "tests/models/seq2seq/seq2seq_case.h"
#include "tests/models/tensor_parallel/parallel_training.h"
#include "tests/support/error_message.h"
#include "zerograd/models/seq2seq/seq2seq_generate.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

/// Heads that four ranks divide; feed-forward layers and a vocabulary that neither two nor four
/// ranks divide.
std::vector<Seq2SeqConfig> shared_seq2seqs() {
  std::vector<Seq2SeqConfig> configs = tiny_seq2seqs();
  for (Seq2SeqConfig& config : configs) {
    config.width = 16;
    config.encoder_heads = 4;
    config.decoder_heads = 8;
    config.encoder_hidden = 19;
    config.decoder_hidden = 26;
    config.vocabulary = 13;
  }
  return configs;
}

/// Three pairs, of which no two have equal lengths, padded to 8 tokens.
Seq2SeqBatch pairs_of_step(const Seq2SeqConfig& config, int step, const Device& device) {
  std::vector<std::vector<int32_t>> sources, targets;
  for (int row = 0; row < 3; ++row) {
    std::vector<int32_t> text;
    for (int i = 0; i < 3 + 2 * row; ++i) text.push_back(3 + (5 * step + 7 * row + 4 * i) % 10);
    sources.push_back(text);
    targets.emplace_back(text.rbegin(), text.rend() - 1);
    targets.back().push_back(config.tokens.eos.front());
  }
  return padded_batch(sources, targets, config.tokens, device, 8, 8);
}

/// Spreads the weights, and gives each token another bias of its logit.
void spread_all(const ParameterStore& store, FakeSource& source) {
  spread_weights(store, source, 15.0);
  const Parameter& bias = *store.find("final_logits_bias");
  std::vector<double>& values = source.at_rest(bias);
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t token = bias.slice.whole_index(static_cast<int64_t>(i));
    values[i] = 0.25 * static_cast<double>(token * 5 % 13);
  }
}

Training trained(const Seq2SeqConfig& config, const TrainingSetting& setting) {
  return trained_on_ranks(setting, [&](ParameterStore& store, const Mesh& mesh) -> LossOfStep {
    const auto model =
        std::make_shared<Seq2Seq>(store, config, TensorParallel{mesh.tensor, setting.sequence});
    return [&config, &setting, model](Tape& tape, int step) {
      const ForwardPosition place{.seed = 5, .step = step, .first_sample = 3 * step};
      return model->loss(tape, pairs_of_step(config, step, tape.device()), place,
                         {.checkpointing = setting.checkpointing, .label_smoothing = 0.1});
    };
  });
}

}  // namespace

TEST_CASE("tensor ranks train an encoder-decoder with dropout, losses and gradients of one rank") {
  for (const Seq2SeqConfig& config : shared_seq2seqs()) {
    CAPTURE(std::string(name_of(config.family)));
    // In f64 a forgotten factor shows, however small its share of the gradient. In f32 and bf16
    // errors of rounding grow over 10 steps.
    for (const auto& [dtype, steps, loss, gradient] :
         {std::tuple{DType::f64, 3, 1e-12, 1e-12}, std::tuple{DType::f32, 10, 1e-5, 1e-4},
          std::tuple{DType::bf16, 10, 2e-2, 5e-2}}) {
      CAPTURE(zg::name_of(dtype));
      const Training whole = trained(config, {.dtype = dtype, .steps = steps});
      CHECK(whole.losses.back() != whole.losses.front());
      for (const int ranks : {2, 4})
        for (const bool sequence : {false, true}) {
          INFO("ranks ", ranks, ", sequence ", sequence);
          check_near(
              trained(config,
                      {.ranks = ranks, .sequence = sequence, .dtype = dtype, .steps = steps}),
              whole, loss, gradient);
        }
    }
  }
}

TEST_CASE("one tensor rank gives an encoder-decoder the bits of none") {
  for (const Seq2SeqConfig& config : shared_seq2seqs()) {
    Seq2SeqCase plain(config);
    Tape tape = plain.tape();
    const ForwardPosition place{.seed = 2, .step = 1};
    const Seq2SeqLossOptions smoothed{.label_smoothing = 0.1};
    const double expected =
        plain.model.loss(tape, pairs_of_step(config, 1, plain.device), place, smoothed)
            .value()
            .item();
    run_local(1, [&](Communicator& world, const Device& device) {
      const Mesh mesh(world, {});
      ParameterStore store;
      const Seq2Seq model(store, config, {mesh.tensor, /*sequence=*/true});
      FakeSource source(store, device, DType::f32);
      Tape on(device, &source);
      const Seq2SeqBatch batch = pairs_of_step(config, 1, device);
      CHECK(model.loss(on, batch, place, smoothed).value().item() == expected);
    });
  }
}

TEST_CASE(
    "dropout and checkpointing keep the replicas of an encoder-decoder's tensor ranks equal") {
  for (const Seq2SeqConfig& config : shared_seq2seqs())
    for (const bool sequence : {false, true}) {
      CAPTURE(sequence);
      const TrainingSetting setting{.ranks = 2, .sequence = sequence, .steps = 4};
      TrainingSetting again = setting;
      again.checkpointing = true;
      const Training plain = trained(config, setting), checkpointed = trained(config, again);
      CHECK(plain.replicas_agree);
      CHECK(same_bits(plain.losses, checkpointed.losses));
      CHECK(plain.weights == checkpointed.weights);
    }
}

TEST_CASE("tensor ranks give an encoder-decoder's logits, and search the same tokens with beams") {
  const std::vector<std::vector<int32_t>> sources = {{3, 9, 4, 10, 2}, {8, 2}, {5, 7, 6}};
  for (const Seq2SeqConfig& config : shared_seq2seqs()) {
    CAPTURE(std::string(name_of(config.family)));
    const auto generated = [&](const Seq2Seq& model, const Device& device, FakeSource& source,
                               int64_t beams) {
      BeamOptions options = beam_options_of(config);
      options.beams = beams;
      options.no_repeat_ngram_size = 2;
      return generate(
          model, [&] { return Tape(device, &source, TapeMode::inference); }, sources, options);
    };
    Seq2SeqCase whole(config);
    spread_all(whole.store, whole.source);
    Tape tape = whole.tape(TapeMode::inference);
    const std::vector<double> logits =
        whole.model.logits(tape, pairs_of_step(config, 0, whole.device)).value().to_doubles();
    std::map<int64_t, Generated> expected;
    for (const int64_t beams : {1, 4})
      expected[beams] = generated(whole.model, whole.device, whole.source, beams);
    for (const int ranks : {2, 4}) {
      CAPTURE(ranks);
      struct OfRank {
        std::vector<double> logits;
        std::map<int64_t, Generated> generated;
      };
      std::vector<OfRank> results(static_cast<size_t>(ranks));
      run_local(ranks, [&](Communicator& world, const Device& device) {
        const Mesh mesh(world, {.tensor = ranks});
        ParameterStore store;
        // Only a loss on a recording tape divides the tokens, so these may have any number.
        const Seq2Seq model(store, config, {mesh.tensor, /*sequence=*/true});
        FakeSource source(store, device, DType::f32);
        spread_all(store, source);
        OfRank& result = results[static_cast<size_t>(world.rank())];
        Tape on(device, &source, TapeMode::inference);
        result.logits = model.logits(on, pairs_of_step(config, 0, device)).value().to_doubles();
        for (const int64_t beams : {1, 4})
          result.generated[beams] = generated(model, device, source, beams);
      });
      for (const OfRank& result : results) {
        CHECK(same_bits(result.logits, results[0].logits));
        REQUIRE(result.logits.size() == logits.size());
        double worst = 0.0;
        for (size_t i = 0; i < logits.size(); ++i)
          worst = std::fmax(worst, std::fabs(result.logits[i] - logits[i]));
        CHECK(worst < 1e-4);  // logits up to about 10 in f32
        for (const int64_t beams : {1, 4})
          CHECK(result.generated.at(beams).rows == expected.at(beams).rows);
      }
    }
  }
}

namespace {

Account account_of_step(Communicator& world, const Device& device, bool sequence,
                        bool checkpointing) {
  const Mesh mesh(world, {.tensor = world.size()});
  ParameterStore store;
  const Seq2SeqConfig config = shared_seq2seqs()[1];
  const Seq2Seq model(store, config, {mesh.tensor, sequence});
  Values source(store, normal_weights(store, 0.1f), device, {.compute = DType::bf16});
  const Seq2SeqBatch batch = {.source = Tensor::full({3, 8}, 4, DType::i32, device),
                              .source_lengths = Tensor::full({3}, 5, DType::i32, device),
                              .labels = Tensor::full({3, 8}, 12, DType::i32, device)};
  Tape tape(device, &source);
  tape.backward(
      model.loss(tape, batch, {}, {.checkpointing = checkpointing, .label_smoothing = 0.1}));
  return {device, *mesh.tensor};
}

}  // namespace

TEST_CASE("a meta device counts the bytes and messages of an encoder-decoder's tensor ranks") {
  for (const int count : {2, 4})
    for (const bool sequence : {false, true})
      for (const bool checkpointing : {false, true}) {
        INFO("count ", count, ", sequence ", sequence, ", checkpointing ", checkpointing);
        check_account_on_meta(count, [&](Communicator& world, const Device& device) {
          return account_of_step(world, device, sequence, checkpointing);
        });
      }
}

TEST_CASE(
    "an encoder-decoder refuses heads, positions and tokens that tensor ranks do not divide") {
  const auto world = counting_communicator(0, 4);
  const Mesh mesh(*world, {.tensor = 4});
  const auto refused = [&](auto change, bool sequence) {
    Seq2SeqConfig config = shared_seq2seqs()[0];
    change(config);
    ParameterStore store;
    return message_of<ConfigError>([&] { Seq2Seq(store, config, {mesh.tensor, sequence}); });
  };
  CHECK(refused([](auto& c) { c.encoder_heads = 2; }, false) ==
        "seq2seq: tensor ranks: expected a divisor of the 2 encoder heads (1, 2), got 4");
  CHECK(refused([](auto& c) { c.decoder_heads = 2; }, false) ==
        "seq2seq: tensor ranks: expected a divisor of the 2 decoder heads (1, 2), got 4");
  CHECK(refused([](auto& c) { c.positions = 10; }, true) ==
        "seq2seq: sequence parallel: expected positions that 4 tensor ranks divide, got 10");
  ParameterStore store;
  const Seq2Seq model(store, shared_seq2seqs()[0], {mesh.tensor, /*sequence=*/true});
  const Device device = Device::meta();
  Values source(store, normal_weights(store, 0.1f), device, {.compute = DType::bf16});
  Tape tape(device, &source);
  const auto ids = [&](int64_t tokens) { return Tensor::full({2, tokens}, 3, DType::i32, device); };
  CHECK_ERROR(ShapeError, "sequence parallel: source [2, 6]; expected a number of tokens that 4",
              model.loss(tape, {.source = ids(6), .labels = ids(8)}, {}));
  CHECK_ERROR(ShapeError, "sequence parallel: labels [2, 7]; expected",
              model.loss(tape, {.source = ids(8), .labels = ids(7)}, {}));
}

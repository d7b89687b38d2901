#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/normal_weights.h"
#include "tests/support/op_case.h"
#include "tests/support/tested_type.h"
#include "zerograd/models/seq2seq/seq2seq.h"
#include "zerograd/runtime/comm/mesh.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

using Seq2SeqResults = std::map<std::string, std::vector<double>>;

/// The loss, the gradients of a step with dropout, and logits of beams that are reordered.
Seq2SeqResults results_on(const Device& device, const Seq2SeqConfig& config,
                          const TensorParallel& parallel = {}) {
  ParameterStore store;
  const Seq2Seq model(store, config, parallel);
  Values source(store, normal_weights(store, 0.1f), device);
  const Seq2SeqBatch batch =
      padded_batch({{3, 9, 4, 10, 2}, {8, 2}, {5, 7, 6, 2}}, {{4, 2}, {9, 3, 10, 5, 2}, {6, 2}},
                   config.tokens, device, 6, 6);
  Tape tape(device, &source);
  const Var loss = model.loss(tape, batch, {.seed = 4, .step = 2}, {.label_smoothing = 0.1});
  const double value = loss.value().item();
  tape.backward(loss);
  Seq2SeqResults results = gradients_of(source);
  results["loss"] = {value};

  Tape inference(device, &source, TapeMode::inference);
  const Var memory = model.encode(inference, batch.source, batch.source_lengths);
  Seq2SeqCache cache(config, memory, batch.source_lengths);
  const std::vector<std::vector<int64_t>> orders = {
      {0, 1, 2}, {0, 0, 1, 1, 2, 2}, {1, 0, 2, 2, 5, 4}, {3, 0, 1}};
  for (size_t step = 0; step < orders.size(); ++step) {
    cache.reorder(orders[step]);
    std::vector<int32_t> ids;
    for (size_t row = 0; row < orders[step].size(); ++row)
      ids.push_back(static_cast<int32_t>(1 + (3 * step + row) % 10));
    const Tensor logits =
        model.next_logits(inference, Tensor::from(ids, {cache.rows(), 1}, device), cache);
    results["logits " + std::to_string(step)] = logits.to_doubles();
  }
  return results;
}

/// The same on each of two tensor ranks, which share the tokens too.
std::vector<Seq2SeqResults> results_of_ranks(Device::Type type, const Seq2SeqConfig& config) {
  std::vector<Seq2SeqResults> results(2);
  run_local(2,
            [&](Communicator& world, const Device& device) {
              const Mesh mesh(world, {.tensor = 2});
              results[static_cast<size_t>(world.rank())] =
                  results_on(device, config, {mesh.tensor, /*sequence=*/true});
            },
            {.type = type});
  return results;
}

void check_results(const Seq2SeqResults& got, const Seq2SeqResults& expected) {
  REQUIRE(got.size() == expected.size());
  for (const auto& [name, values] : expected) {
    // A softmax does not change if all its scores are moved, so these gradients are rounding.
    if (name.ends_with("k_proj.bias")) continue;
    CAPTURE(name);
    const std::vector<double>& own = got.at(name);
    REQUIRE(own.size() == values.size());
    double squares = 0.0, far = 0.0;
    for (size_t i = 0; i < own.size(); ++i) {
      squares += values[i] * values[i];
      far += (own[i] - values[i]) * (own[i] - values[i]);
    }
    // Tensor cores round the factors of a product to less than f32.
    CHECK(std::sqrt(far) <= 2e-3 * std::sqrt(squares));
  }
}

}  // namespace

TEST_CASE("encoder-decoder models train and generate on accelerators as on the CPU" *
          doctest::test_suite("every device")) {
  for (const Seq2SeqFamily family : {Seq2SeqFamily::blenderbot, Seq2SeqFamily::bart}) {
    CAPTURE(std::string(name_of(family)));
    Seq2SeqConfig config = Seq2SeqConfig::of(family);
    config.width = 24;
    config.encoder_heads = 2;
    config.decoder_heads = 3;
    config.vocabulary = 11;
    config.positions = 8;
    config.scaled_embedding = family == Seq2SeqFamily::blenderbot;
    config.dropout = 0.2f;
    config.attention_dropout = config.activation_dropout = 0.1f;
    check_results(results_on(device_of_rank(tested_type, 0, {}), config),
                  results_on(Device::cpu(), config));
    config.decoder_heads = 2;
    const std::vector<Seq2SeqResults> ranks = results_of_ranks(tested_type, config),
                                      expected = results_of_ranks(Device::Type::cpu, config);
    for (const size_t rank : {0, 1}) {
      CAPTURE(rank);
      check_results(ranks[rank], expected[rank]);
      CHECK(ranks[rank].at("logits 3") == ranks[0].at("logits 3"));
    }
  }
}

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/support/normal_weights.h"
#include "tests/support/op_case.h"
#include "tests/support/tested_type.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/gpt/gpt.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

/// A decoder with learned positions, ALiBi or rotary ones.
GPTConfig decoder_with(Position position) {
  GPTConfig config =
      position == Position::rope ? GPTConfig::of(Family::llama) : GPTConfig::of(Family::gpt);
  config.layers = 2;
  config.heads = 2;
  config.width = 32;
  config.vocabulary = 11;
  config.block_size = 24;
  config.dropout = 0.0f;
  config.position = position;
  if (position == Position::rope) {
    config.kv_heads = 1;
    config.hidden = 40;
  }
  return config;
}

ConversationDataset packed_conversations() {
  std::vector<Conversation> all;
  for (int32_t i = 0; i < 12; ++i) {
    Conversation conversation;
    for (int32_t t = 0; t < 4 + i % 7; ++t) {
      conversation.tokens.push_back((i * i + 3 * t) % 11);
      conversation.is_target.push_back(t > 2);
    }
    all.push_back(std::move(conversation));
  }
  return {std::move(all), {}, {.block_size = 24, .vocabulary = 11}};
}

/// The loss and gradients of two packed sequences; `empty`: all their targets are ignored.
std::map<std::string, std::vector<double>> packed_results(const Device& device,
                                                          const GPTConfig& config, bool empty) {
  ParameterStore store;
  const GPT gpt(store, config);
  Values source(store, normal_weights(store, 0.1f), device);
  const ConversationDataset data = packed_conversations();
  const Batch batch = data.batch(models::Split::train, 0, 2, device);
  const Tensor targets =
      empty ? Tensor::full(batch.targets.shape(), -1.0, DType::i32, device) : batch.targets;
  Tape tape(device, &source);
  const Var loss = gpt.loss(tape, batch.ids, targets, {}, /*checkpointing=*/false,
                            {.starts = batch.starts, .positions = batch.positions});
  const double value = loss.value().item();
  tape.backward(loss);
  std::map<std::string, std::vector<double>> results = gradients_of(source);
  results["loss"] = {value};
  return results;
}

}  // namespace

TEST_CASE("packed conversations have the losses and gradients of the CPU on accelerators" *
          doctest::test_suite("every device")) {
  for (const Position position : {Position::learned, Position::alibi, Position::rope}) {
    CAPTURE(std::string(name_of(position)));
    const GPTConfig config = decoder_with(position);
    const auto expected = packed_results(Device::cpu(), config, /*empty=*/false);
    const auto got = packed_results(device_of_rank(tested_type, 0, {}), config, /*empty=*/false);
    REQUIRE(got.size() == expected.size());
    for (const auto& [name, values] : expected) {
      CAPTURE(name);
      const std::vector<double>& own = got.at(name);
      REQUIRE(own.size() == values.size());
      double squares = 0.0, far = 0.0;
      for (size_t t = 0; t < own.size(); ++t) {
        squares += values[t] * values[t];
        far += (own[t] - values[t]) * (own[t] - values[t]);
      }
      // Tensor cores round the factors of a product to a lower precision than f32.
      CHECK(std::sqrt(far) <= 2e-3 * std::sqrt(squares));
    }
  }
}

TEST_CASE("a batch without targets has a loss of 0 and zero gradients on accelerators" *
          doctest::test_suite("every device")) {
  for (const Position position : {Position::learned, Position::rope}) {
    CAPTURE(std::string(name_of(position)));
    for (const auto& [name, values] :
         packed_results(device_of_rank(tested_type, 0, {}), decoder_with(position),
                        /*empty=*/true)) {
      CAPTURE(name);
      for (const double value : values) CHECK(value == 0.0);
    }
  }
}

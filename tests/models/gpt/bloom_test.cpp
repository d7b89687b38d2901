#include "zerograd/models/gpt/gpt_config.h"

#include "tests/models/gpt/gpt_case.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

int64_t parameters_of(const GPTConfig& config) {
  ParameterStore store;
  const GPT model(store, config);
  return store.numel();
}

}  // namespace

TEST_CASE("BLOOM's presets have the published parameter counts") {
  struct Count {
    const char* name;
    int64_t parameters;
  };
  for (const Count& count :
       {Count{"bloom-560m", 559'214'592}, Count{"bloom-1b1", 1'065'314'304},
        Count{"bloom-1b7", 1'722'408'960}, Count{"bloom-3b", 3'002'557'440},
        Count{"bloom-7b1", 7'069'016'064}, Count{"bloom-176b", 176'247'271'424}}) {
    CAPTURE(count.name);
    const GPTConfig config = GPTConfig::preset(count.name);
    CHECK(config.vocabulary == 250880);
    CHECK(parameters_of(config) == count.parameters);
    // A head of its own adds one embedding; the count without the head stays.
    GPTConfig untied = config;
    untied.tied = false;
    CHECK(parameters_of(untied) == count.parameters + config.vocabulary * config.width);
    ParameterStore store;
    CHECK(GPT(store, untied).transformer_parameters() == count.parameters);
  }
}

TEST_CASE("preset bloom-13b has 12.85 billion parameters, learned positions included") {
  const GPTConfig config = GPTConfig::preset("bloom-13b");
  CHECK(config.position == Position::learned);
  CHECK(config.block_size == 2048);
  const int64_t E = 5120;
  CHECK(parameters_of(config) ==
        40 * (12 * E * E + 13 * E) + 2 * E + int64_t{50304} * E + 2048 * E);
  CHECK(parameters_of(config) == 12'853'626'880);
  GPTConfig alibi = config;
  alibi.position = Position::alibi;
  CHECK(parameters_of(alibi) == parameters_of(config) - 2048 * E);
}

TEST_CASE("BLOOM's parameters have the names, shapes and order of its state dict") {
  const auto listing = [](const GPTConfig& config) {
    ParameterStore store;
    const GPT model(store, config);
    std::string lines;
    for (const auto& p : store.parameters())
      lines +=
          p->unit->name + " " + p->name + " " + p->shape.str() + (p->decay ? " decay" : "") + "\n";
    return lines;
  };
  GPTConfig config = tiny_bloom();
  config.layers = 1;
  const std::string block =
      "block.0 transformer.h.0.input_layernorm.weight [12]\n"
      "block.0 transformer.h.0.input_layernorm.bias [12]\n"
      "block.0 transformer.h.0.self_attention.query_key_value.weight [36, 12] decay\n"
      "block.0 transformer.h.0.self_attention.query_key_value.bias [36]\n"
      "block.0 transformer.h.0.self_attention.dense.weight [12, 12] decay\n"
      "block.0 transformer.h.0.self_attention.dense.bias [12]\n"
      "block.0 transformer.h.0.post_attention_layernorm.weight [12]\n"
      "block.0 transformer.h.0.post_attention_layernorm.bias [12]\n"
      "block.0 transformer.h.0.mlp.dense_h_to_4h.weight [48, 12] decay\n"
      "block.0 transformer.h.0.mlp.dense_h_to_4h.bias [48]\n"
      "block.0 transformer.h.0.mlp.dense_4h_to_h.weight [12, 48] decay\n"
      "block.0 transformer.h.0.mlp.dense_4h_to_h.bias [12]\n"
      "head transformer.ln_f.weight [12]\n"
      "head transformer.ln_f.bias [12]\n";
  CHECK(listing(config) ==
        "embedding transformer.word_embeddings.weight [7, 12]\n"
        "embedding transformer.word_embeddings_layernorm.weight [12]\n"
        "embedding transformer.word_embeddings_layernorm.bias [12]\n" +
            block);
  config.position = Position::learned;
  config.embedding_norm = config.tied = false;
  CHECK(listing(config) ==
        "embedding transformer.word_embeddings.weight [7, 12]\n"
        "embedding transformer.position_embeddings.weight [6, 12]\n" +
            block + "head lm_head.weight [7, 12] decay\n");
}

TEST_CASE("BLOOM's logits depend on token order through ALiBi alone and on no absolute position") {
  // Every second token is the same, so what the last sees differs by distances only.
  GPTConfig config = tiny_bloom();
  config.layers = 1;
  GPTCase model(config, Device::cpu(), DType::f64, /*spread=*/15.0);
  const auto last = [&](const std::vector<int32_t>& ids) {
    Tape tape = model.tape(TapeMode::inference);
    const Tensor tokens = Tensor::from(ids, {1, static_cast<int64_t>(ids.size())}, model.device);
    const std::vector<double> logits = model.gpt.logits(tape, tokens).value().to_doubles();
    return std::vector<double>(logits.end() - 7, logits.end());
  };
  CHECK(last({1, 2, 3, 4}) != last({2, 1, 3, 4}));
  // A longer prefix of the last token itself: the same score everywhere, so the same answer.
  const std::vector<double> one = last({4}), many = last({4, 4, 4, 4, 4});
  for (size_t v = 0; v < one.size(); ++v) CHECK(many[v] == doctest::Approx(one[v]).epsilon(1e-12));
}

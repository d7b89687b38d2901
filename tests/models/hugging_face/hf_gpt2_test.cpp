#include "zerograd/models/hugging_face/hugging_face.h"

#include <nlohmann/json.hpp>

#include "tests/models/gpt/gpt_case.h"
#include "tests/models/hugging_face/transformers_results.h"
#include "tests/support/error_message.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"

using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

const std::string hf_gpt2_fixture = std::string(ZG_FIXTURES) + "hf_gpt2";

GPTConfig hf_gpt2_config() {
  return hf_config(read_text(hf_gpt2_fixture + "/config.json"), "config.json").config;
}

json hf_gpt2_json() { return json::parse(read_text(hf_gpt2_fixture + "/config.json")); }

}  // namespace

TEST_CASE("logits of a Hugging Face GPT-2 match PyTorch") {
  const Transformers theirs("hf_gpt2", "logits.safetensors");
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    GPTConfig config = hf_gpt2_config();
    CHECK(config.tied);
    GPTCase model(config, device);
    CHECK(hf_tensors(config).size() == model.store.parameters().size());
    load_weights(HuggingFaceFolder(hf_gpt2_fixture).weights(config), model);
    Tape tape = model.tape(TapeMode::inference);
    const Var logits = model.gpt.logits(tape, Tensor::from(theirs.ids, {2, 12}, device));
    // The other side is f64. About 100 roundings of u = 2^-24 lie on our way to logits, and
    // LayerNorm divides by deviations near 0.5: 64 u of the largest.
    CHECK(relative_error(logits.value().to_doubles(), theirs.expected.read_floats("logits")) <
          64 * 0x1p-24);
  }
}

TEST_CASE("hf_config reads back the GPT-2 config that hf_json writes") {
  for (bool tied : {true, false}) {
    GPTConfig config = hf_gpt2_config();
    config.tied = tied;
    config.vocabulary = tied ? 61 : 50257;
    const SpecialTokens tokens = {
        .bos = 7, .pad = 3, .eos = tied ? std::vector{60} : std::vector{60, 9}};
    const std::string text = hf_json(config, tokens);
    const HFModel back = hf_config(text, "config.json");
    CHECK(back.tokens == tokens);
    CHECK(back.dropouts.empty());
    CHECK((back.config == config));
    CHECK(json::parse(text)["resid_pdrop"] == 0.1);
    CHECK(json::parse(text)["eos_token_id"] == (tied ? json(60) : json({60, 9})));
    // A model of characters or numbers has none, whatever its vocabulary: null, not 50256.
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      CHECK(json::parse(hf_json(config)).at(key) == nullptr);
  }
  const GPTConfig gpt2 = hf_config("{}", "config.json").config;  // transformers' defaults
  CHECK(gpt2.layers == 12);
  CHECK(gpt2.width == 768);
  CHECK(gpt2.vocabulary == 50257);
  CHECK(gpt2.block_size == 1024);
}

TEST_CASE("special tokens are read as transformers reads them") {
  const auto tokens_of = [](const json& keys) {
    json config = hf_gpt2_json();
    config.erase("bos_token_id");
    config.erase("eos_token_id");
    config.update(keys);
    return hf_config(config.dump(), "config.json").tokens;
  };
  // The fixture names 50256, which its 61 tokens do not have.
  CHECK(hf_config(hf_gpt2_json().dump(), "config.json").tokens == SpecialTokens());
  CHECK(tokens_of({{"vocab_size", 50257}}) ==
        SpecialTokens{.bos = 50256, .pad = {}, .eos = {50256}});
  CHECK(tokens_of({{"eos_token_id", {3, 4, 61}}, {"bos_token_id", 1}, {"pad_token_id", 2}}) ==
        SpecialTokens{.bos = 1, .pad = 2, .eos = {3, 4}});
  CHECK(tokens_of({{"vocab_size", 50257},
                   {"eos_token_id", nullptr},
                   {"bos_token_id", nullptr},
                   {"pad_token_id", -1}}) == SpecialTokens());
  for (const json& wrong : {json("5"), json(1.5), json(uint64_t{1} << 40), json({1, "x"})}) {
    CAPTURE(wrong.dump());
    CHECK_ERROR(FileError,
                "config.json: eos_token_id: expected the id of a token, a list of them or null",
                tokens_of({{"eos_token_id", wrong}}));
  }
  // generate() goes by generation_config.json where there is one.
  HFModel model = hf_config(hf_gpt2_json().dump(), "config.json");
  model.tokens = {.bos = 1, .pad = 2, .eos = {3}};
  read_hf_generation(R"({"eos_token_id": [5, 6], "pad_token_id": null})", "g.json", model);
  CHECK(model.tokens == SpecialTokens{.bos = 1, .pad = {}, .eos = {5, 6}});
  read_hf_generation(R"({"temperature": 0.6, "eos_token_id": 5})", "g.json", model);
  CHECK(json::parse(hf_generation_json(model.tokens, model.generation_json)) ==
        json{{"temperature", 0.6}, {"eos_token_id", 5}, {"bos_token_id", 1}});
  read_hf_generation(hf_generation_json({.bos = 8, .pad = {}, .eos = {9}}), "g.json", model);
  CHECK(model.tokens == SpecialTokens{.bos = 8, .pad = {}, .eos = {9}});
  CHECK_ERROR(FileError, "g.json:1:2: is not JSON", read_hf_generation("[", "g.json", model));
}

TEST_CASE("hf_config reads alternative GPT-2 keys and values, and refuses two keys that disagree") {
  const auto read = [](const json& keys) {
    json config = hf_gpt2_json();
    config.update(keys);
    return hf_config(config.dump(), "config.json").config;
  };
  for (const char* gelu :
       {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"})
    CHECK(read({{"activation_function", gelu}}).width == 8);
  for (const json& keys : {json{{"pruned_heads", json::object()}}, json{{"n_inner", nullptr}},
                           json{{"reorder_and_upcast_attn", true}}, json{{"dtype", "bfloat16"}},
                           json{{"summary_type", "last"}, {"task_specific_params", {{"x", 1}}}}})
    CHECK(read(keys).layers == 2);
  CHECK(read({{"n_inner", 31}}).hidden == 31);
  CHECK(read({{"n_inner", 32}}).hidden == 0);  // 4 x width, the default
  CHECK(read({{"layer_norm_epsilon", 1e-6}}).norm_epsilon == 1e-6f);
  // transformers reads these names too.
  json other = hf_gpt2_json();
  for (const auto& [own, alias] : {std::pair{"n_embd", "hidden_size"},
                                   {"n_layer", "num_hidden_layers"},
                                   {"n_head", "num_attention_heads"},
                                   {"n_positions", "max_position_embeddings"}}) {
    other[alias] = other[own];
    other.erase(own);
  }
  const GPTConfig config = hf_config(other.dump(), "config.json").config;
  CHECK(config.width == 8);
  CHECK(config.layers == 2);
  CHECK(config.heads == 2);
  CHECK(config.block_size == 16);
  other["n_embd"] = 16;
  CHECK_ERROR(FileError, "c.json: hidden_size: expected 16 as n_embd says, got 8",
              hf_config(other.dump(), "c.json"));
}

TEST_CASE("hf_config refuses unsupported GPT-2 settings and names the key") {
  const auto refused = [](const char* key, const json& value) {
    json config = hf_gpt2_json();
    config[key] = value;
    const std::string text = config.dump();
    CHECK_ERROR(Unsupported, std::string("d/config.json: ") + key + " is " + value.dump(),
                hf_config(text, "d/config.json"));
  };
  refused("activation_function", "gelu");
  refused("activation_function", "relu");
  refused("scale_attn_weights", false);
  refused("scale_attn_by_inverse_layer_idx", true);
  refused("add_cross_attention", true);
  refused("model_type", "t5");
  refused("quantization_config", json::object());
  refused("pruned_heads", {{"0", {1}}});
  json config = hf_gpt2_json();
  config["attn_pdrop"] = 0.0;
  CHECK(hf_config(config.dump(), "c").dropouts == "resid_pdrop, embd_pdrop and attn_pdrop");
}

TEST_CASE("hf_config refuses malformed JSON and invalid values of a config") {
  const auto error_of = [](const std::string& text) {
    return message_of<FileError>([&] { hf_config(text, "config.json"); });
  };
  CHECK(contains(error_of(""), "config.json:1:1: is not JSON: "));
  CHECK(contains(error_of("[]"), "config.json:1:1: expected a JSON object"));
  CHECK(
      contains(error_of("{\"n_layer\": 1e999}"), "config.json:1:17: is not JSON: number overflow"));
  CHECK(contains(error_of(std::string(100000, '[')), "nested deeper than 64 levels"));
  const auto key_error = [&](const char* key, const json& value) {
    json config = hf_gpt2_json();
    config[key] = value;
    return error_of(config.dump());
  };
  CHECK(contains(key_error("n_layer", 0), "n_layer: expected a count, got 0"));
  CHECK(contains(key_error("n_layer", -1), "n_layer: expected a count, got -1"));
  CHECK(contains(key_error("n_head", 3), "config.json: "));  // does not divide the width
  CHECK(contains(key_error("vocab_size", UINT64_MAX), "vocab_size: expected a count"));
  CHECK(contains(key_error("n_embd", 1e300), "n_embd: expected a count"));
  CHECK(contains(key_error("n_positions", "16"), "n_positions: expected a count, got \"16\""));
  CHECK(contains(key_error("tie_word_embeddings", 1), "tie_word_embeddings: expected true or"));
  CHECK(contains(key_error("resid_pdrop", 2.0), "resid_pdrop: expected a share from 0 to 1"));
  CHECK(
      contains(key_error("attn_pdrop", 1.5), "attn_pdrop: expected a share from 0 to 1, got 1.5"));
  CHECK(contains(key_error("layer_norm_epsilon", 1e300), "expected a finite number from 0"));
}

TEST_CASE("hf_ignores skips the masks of GPT-2") {
  CHECK(hf_ignores("h.0.attn.bias"));
  CHECK(!hf_ignores("h.0.attn.c_attn.bias"));
}

TEST_CASE("transposing a matrix of any size twice gives it back") {
  for (const auto& [rows, columns] : {std::pair{1, 7}, {31, 33}, {64, 65}, {100, 1}}) {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const std::vector<float> once = transposed(values, rows, columns);
    CHECK(once[static_cast<size_t>(rows - 1)] == static_cast<float>((rows - 1) * columns));
    CHECK(transposed(once, columns, rows) == values);
  }
}

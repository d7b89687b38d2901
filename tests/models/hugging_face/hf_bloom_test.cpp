#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/models/gpt/gpt_case.h"
#include "tests/models/hugging_face/transformers_results.h"
#include "tests/support/error_message.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/family.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"

// tests/reference/bloom.py makes the fixture with transformers.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

const std::string hf_bloom_fixture = std::string(ZG_FIXTURES) + "hf_bloom";

GPTConfig hf_bloom_config() {
  return hf_config(read_text(hf_bloom_fixture + "/config.json"), "config.json").config;
}

json hf_bloom_json() { return json::parse(read_text(hf_bloom_fixture + "/config.json")); }

void load(GPTCase& model) {
  CHECK(hf_tensors(model.gpt.config()).size() == model.store.parameters().size());
  load_weights(HuggingFaceFolder(hf_bloom_fixture).weights(model.gpt.config()), model);
}

double euclidean_distance(const std::vector<double>& a, const std::vector<float>& b) {
  double squares = 0.0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE("logits of a Hugging Face BLOOM match transformers") {
  const Transformers theirs("hf_bloom", "answers.safetensors");
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    GPTCase model(hf_bloom_config(), device);
    CHECK(model.gpt.config().heads == 12);  // not a power of two, so ALiBi uses its other formula
    load(model);
    Tape tape = model.tape(TapeMode::inference);
    const Var logits = model.gpt.logits(tape, Tensor::from(theirs.ids, {2, 12}, device));
    // The reference is f64 except for its softmax. About 100 roundings of u = 2^-24 affect logits,
    // and LayerNorm divides by deviations near 0.5: 64 u of the largest.
    CHECK(relative_error(logits.value().to_doubles(), theirs.expected.read_floats("logits")) <
          64 * 0x1p-24);
  }
}

TEST_CASE("loss and gradients of a Hugging Face BLOOM match PyTorch") {
  const SafetensorsReader answers(hf_bloom_fixture + "/answers.safetensors");
  const double expected = json::parse(read_text(hf_bloom_fixture + "/expected.json")).at("loss");
  std::vector<int32_t> ids, targets;
  for (int i = 0; i < 64; ++i) {
    ids.push_back((i * i + 3 * i) % 97);
    targets.push_back(((i + 1) * (i + 1) + 3 * (i + 1)) % 97);
  }
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    GPTCase model(hf_bloom_config(), device);
    load(model);
    Tape tape = model.tape();
    const Var loss = model.gpt.loss(tape, Tensor::from(ids, {4, 16}, device),
                                    Tensor::from(targets, {4, 16}, device), {});
    // The mean of 64 numbers near 6, from logits with an error of a few u = 2^-24.
    CHECK(std::fabs(loss.value().item() - expected) < 16 * 6.1 * 0x1p-24);
    tape.backward(loss);
    int compared = 0;
    for (const auto& [name, entry] : answers.entries()) {
      if (!name.starts_with("gradient.")) continue;
      CAPTURE(name);
      const Parameter* parameter =
          model.store.find("transformer." + name.substr(std::string("gradient.").size()));
      REQUIRE(parameter);
      const std::vector<float> reference = answers.read_floats(name);
      const std::vector<double>& gradient = model.source.gradients[parameter];
      REQUIRE(gradient.size() == reference.size());
      // As for minGPT's gradients: a random walk of about 100 roundings, a few times larger where
      // LayerNorm and softmax subtract.
      CHECK(euclidean_distance(gradient, reference) <
            64 * 0x1p-24 * euclidean_distance(std::vector<double>(gradient.size()), reference));
      ++compared;
    }
    CHECK(compared == 7);
  }
}

TEST_CASE("hf_config reads back the BLOOM config that hf_json writes") {
  for (bool tied : {true, false}) {
    GPTConfig config = hf_bloom_config();
    config.tied = tied;
    config.vocabulary = tied ? 97 : 250880;
    config.block_size = 512;
    config.dropout = 0.1f;
    const SpecialTokens tokens = {.bos = 1, .pad = 3, .eos = {2}};
    const std::string text = hf_json(config, tokens);
    const HFModel back = hf_config(text, "config.json");
    CHECK(back.tokens == tokens);
    CHECK(back.dropouts.empty());
    CHECK((back.config == config));
    CHECK(json::parse(text)["hidden_dropout"] == 0.1);
    CHECK(json::parse(text)["pad_token_id"] == 3);
    CHECK(json::parse(hf_json(config))["pad_token_id"] == nullptr);
    // The keys that transformers wrote for the fixture are in our file with the same values.
    const json theirs = hf_bloom_json(), ours = json::parse(hf_json(hf_bloom_config()));
    for (const char* key : {"architectures", "model_type", "vocab_size", "hidden_size", "n_layer",
                            "n_head", "layer_norm_epsilon", "hidden_dropout", "attention_dropout",
                            "apply_residual_connection_post_layernorm", "tie_word_embeddings"})
      CHECK(ours.at(key) == theirs.at(key));
  }
}

TEST_CASE("hf_config reads the other key names of published BLOOM configs") {
  const auto read = [](const json& config) {
    return hf_config(config.dump(), "config.json").config;
  };
  const GPTConfig published = read({{"model_type", "bloom"},
                                    {"n_embed", 1024},
                                    {"num_attention_heads", 16},
                                    {"n_layer", 24},
                                    {"n_inner", nullptr},
                                    {"offset_alibi", 100},
                                    {"slow_but_exact", false},
                                    {"pretraining_tp", 4},
                                    {"vocab_size", 250880}});
  GPTConfig named = GPTConfig::preset("bloom-560m");
  named.dropout = 0.0f;
  CHECK(published.dropout == 0.0f);
  CHECK(hf_json(published) == hf_json(named));
  CHECK(hf_config(R"({"model_type": "bloom"})", "c").tokens ==
        SpecialTokens{.bos = 1, .pad = {}, .eos = {2}});
  const GPTConfig smallest = read({{"model_type", "bloom"}});  // transformers' defaults
  CHECK(smallest.width == 64);
  CHECK(smallest.layers == 2);
  CHECK(smallest.heads == 8);
  json twice = hf_bloom_json();
  twice["n_embed"] = 24;
  CHECK(read(twice).width == 24);
  twice["n_embed"] = 48;
  CHECK_ERROR(FileError, "config.json: n_embed: expected 24 as hidden_size says, got 48",
              read(twice));
}

TEST_CASE("hf_config refuses unsupported BLOOM settings and names the key") {
  const auto refused = [](const char* key, const json& value) {
    json config = hf_bloom_json();
    config[key] = value;
    const std::string text = config.dump();
    CHECK_ERROR(Unsupported, std::string("d/config.json: ") + key + " is " + value.dump(),
                hf_config(text, "d/config.json"));
  };
  refused("apply_residual_connection_post_layernorm", true);
  refused("n_inner", 95);
  refused("quantization_config", json::object());
  refused("model_type", "mpt");
  refused("pruned_heads", {{"1", {0}}});
  json config = hf_bloom_json();
  config["pretraining_tp"] = 2;
  CHECK(hf_config(config.dump(), "c").config.layers == 2);
  config["slow_but_exact"] = true;
  CHECK_ERROR(Unsupported, "c: slow_but_exact is true; expected false",
              hf_config(config.dump(), "c"));
  config = hf_bloom_json();
  config["attention_dropout"] = 0.1;
  CHECK(hf_config(config.dump(), "c").dropouts == "hidden_dropout and attention_dropout");
  config["layer_norm_epsilon"] = 1e-6;
  CHECK(hf_config(config.dump(), "c").config.norm_epsilon == 1e-6f);
  config["n_head"] = 5;
  CHECK_ERROR(FileError, "c: n_head: expected a divisor of the width",
              hf_config(config.dump(), "c"));
}

TEST_CASE("hf_json refuses a model that transformers does not have") {
  GPTConfig learned = hf_bloom_config(), without_norm = learned, alibi = tiny_config();
  learned.position = Position::learned;
  without_norm.embedding_norm = false;
  alibi.position = Position::alibi;
  for (const auto& [config, expected] :
       {std::pair(learned, "position is learned"),
        std::pair(without_norm, "embedding_norm is false"), std::pair(alibi, "position is alibi")})
    CHECK_ERROR(Unsupported, expected, hf_json(config));
  for (const Family family : all_families) {
    CAPTURE(std::string(name_of(family)));
    GPTConfig own = GPTConfig::of(family);
    own.heads = 2;
    own.width = 8;
    own.vocabulary = 7;
    own.block_size = 6;
    if (own.rotated_share < 1.0) own.rotated_share = 0.5;
    const auto refused_field = [&](auto field, auto value) {
      GPTConfig changed = own;
      changed.*field = value;
      return message_of<Unsupported>([&] { hf_json(changed); });
    };
    CHECK(hf_config(hf_json(own), "c").config.norm_epsilon == own.norm_epsilon);
    const std::string accepted = "nothing was thrown";
    const bool has_windows =
        has_gate(row_of(family)) && family != Family::llama && family != Family::olmo2;
    CHECK(contains(refused_field(&GPTConfig::window, 3),
                   has_windows ? accepted : "window is 3; expected 0"));
    CHECK(contains(refused_field(&GPTConfig::head_size, 6),
                   has_gate(row_of(family)) ? accepted : "head_size is 6; expected 4"));
    CHECK(contains(refused_field(&GPTConfig::hidden, 20),
                   family == Family::bloom ? "hidden is 20; expected 32" : accepted));
    CHECK(contains(refused_field(&GPTConfig::qkv_bias, !own.qkv_bias), "bias is "));
    CHECK(contains(refused_field(&GPTConfig::mlp, nn::MlpKind::gelu_erf),
                   family == Family::gpt_neox ? accepted : "mlp is gelu_erf"));
  }
}

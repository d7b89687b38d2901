#include "models/hugging_face.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/file_io.h"
#include "tests/error_message.h"
#include "tests/models/gpt_case.h"
#include "zero/safetensors_folder.h"

using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

const std::string fixture = std::string(ZG_FIXTURES) + "hf_gpt2";

GPTConfig fixture_config() {
  return hf_config(read_text(fixture + "/config.json"), "config.json").config;
}

json fixture_json() { return json::parse(read_text(fixture + "/config.json")); }

}  // namespace

TEST_CASE("logits of a Hugging Face GPT-2 are PyTorch's") {
  const zero::SafetensorsFolder folder(fixture);
  const zero::SafetensorsReader expected(fixture + "/logits.safetensors");
  const std::vector<float> logits = expected.read_floats("logits");
  std::vector<int64_t> ids(24);
  const File file = File::open(fixture + "/logits.safetensors");
  file.read_at(expected.entries().at("ids").begin, std::as_writable_bytes(std::span(ids)));
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    GPTConfig config = fixture_config();
    CHECK(config.tied);
    GPTCase model(config, device);
    const std::vector<HFTensor> tensors = hf_tensors(config);
    CHECK(tensors.size() == model.store.parameters().size());
    for (const HFTensor& tensor : tensors) {
      REQUIRE(folder.shape(tensor.name) == tensor.their_shape());
      std::vector<float> values = folder.read_floats(tensor.name);
      if (tensor.conv1d) values = transposed(values, tensor.shape[1], tensor.shape[0]);
      model.source.at_rest(*model.store.find(tensor.name)).assign(values.begin(), values.end());
    }
    Tape tape = model.tape(TapeMode::inference);
    const Tensor tokens = Tensor::from(ids, {2, 12}, device);
    const std::vector<double> ours = model.gpt.logits(tape, tokens).value().to_doubles();
    REQUIRE(ours.size() == logits.size());
    double worst = 0.0;
    for (size_t i = 0; i < ours.size(); ++i)
      worst = std::max(worst, std::fabs(ours[i] - double{logits[i]}));
    // The other side is f64. About 100 roundings of u = 2^-24 lie on our way to logits up to 2.5,
    // and LayerNorm divides by deviations near 0.5: 64 u of the largest.
    CHECK(worst < 64 * 0x1p-24 * 2.6);
  }
}

TEST_CASE("a config comes back from what is written of it") {
  for (bool tied : {true, false}) {
    GPTConfig config = fixture_config();
    config.tied = tied;
    config.vocabulary = tied ? 61 : 50257;
    const std::string text = hf_json(config);
    const HFModel back = hf_config(text, "config.json");
    CHECK(back.dropouts.empty());
    CHECK(back.config.layers == config.layers);
    CHECK(back.config.heads == config.heads);
    CHECK(back.config.width == config.width);
    CHECK(back.config.vocabulary == config.vocabulary);
    CHECK(back.config.block_size == config.block_size);
    CHECK(back.config.tied == tied);
    CHECK(back.config.dropout == config.dropout);
    CHECK(json::parse(text)["resid_pdrop"] == 0.1);
    CHECK(json::parse(text)["eos_token_id"] == (tied ? json(nullptr) : json(50256)));
  }
  const GPTConfig gpt2 = hf_config("{}", "config.json").config;  // transformers' defaults
  CHECK(gpt2.layers == 12);
  CHECK(gpt2.width == 768);
  CHECK(gpt2.vocabulary == 50257);
  CHECK(gpt2.block_size == 1024);
}

TEST_CASE("what our GPT does not compute is refused by its key") {
  const auto refused = [](const char* key, const json& value) {
    json config = fixture_json();
    config[key] = value;
    const std::string text = config.dump();
    const std::string error = message_of<Unsupported>([&] { hf_config(text, "d/config.json"); });
    CHECK(contains(error, std::string("d/config.json: ") + key + " is " + value.dump()));
  };
  refused("activation_function", "gelu");
  refused("activation_function", "relu");
  refused("layer_norm_epsilon", 1e-6);
  refused("n_inner", 31);
  refused("scale_attn_weights", false);
  refused("scale_attn_by_inverse_layer_idx", true);
  refused("add_cross_attention", true);
  refused("model_type", "llama");
  refused("quantization_config", json::object());
  json config = fixture_json();
  config["n_inner"] = 32;  // what it is anyway
  CHECK(hf_config(config.dump(), "c").config.width == 8);
  config["attn_pdrop"] = 0.0;
  CHECK(hf_config(config.dump(), "c").dropouts == "resid_pdrop, embd_pdrop and attn_pdrop");
}

TEST_CASE("a hostile config is refused with its place") {
  const auto error_of = [](const std::string& text) {
    return message_of<FileError>([&] { hf_config(text, "config.json"); });
  };
  CHECK(contains(error_of(""), "config.json: is not JSON at byte 1"));
  CHECK(contains(error_of("[]"), "config.json: expected a JSON object"));
  CHECK(contains(error_of("{\"n_layer\": 1e999}"), "config.json: is not JSON"));
  CHECK(contains(error_of(std::string(100000, '[')), "nested deeper than 64 levels"));
  const auto key_error = [&](const char* key, const json& value) {
    json config = fixture_json();
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
  CHECK(contains(key_error("resid_pdrop", 2.0), "config.json: "));
}

TEST_CASE("a head that repeats the tied table is passed over, one of its own is not") {
  GPTConfig config = fixture_config();
  config.tied = true;
  CHECK(hf_ignores("lm_head.weight", config));
  CHECK(hf_ignores("h.0.attn.bias", config));
  CHECK(!hf_ignores("h.0.attn.c_attn.bias", config));
  config.tied = false;
  CHECK(!hf_ignores("lm_head.weight", config));
}

TEST_CASE("transposing twice gives the matrix back, of any sides") {
  for (const auto& [rows, columns] : {std::pair{1, 7}, {31, 33}, {64, 65}, {100, 1}}) {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const std::vector<float> once = transposed(values, rows, columns);
    CHECK(once[static_cast<size_t>(rows - 1)] == static_cast<float>((rows - 1) * columns));
    CHECK(transposed(once, columns, rows) == values);
  }
}

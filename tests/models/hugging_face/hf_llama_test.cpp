#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/models/gpt/gpt_case.h"
#include "tests/models/hugging_face/transformers_results.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/engine.h"

// tests/reference/make_llama_fixtures.py makes the fixtures with transformers.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

constexpr const char* llama_fixtures[] = {
    "hf_llama",    "hf_smollm2",         "hf_mistral", "hf_qwen2",  "hf_qwen3",
    "hf_gpt_neox", "hf_gpt_neox_serial", "hf_olmo2",   "hf_gemma3", "hf_phi3"};

GPTConfig config_of(const json& text) { return hf_config(text.dump(), "config.json").config; }

json config_json(const std::string& name) {
  return json::parse(read_text(std::string(ZG_FIXTURES) + name + "/config.json"));
}

}  // namespace

TEST_CASE("logits, loss and every gradient of families with rotary positions match transformers") {
  for (const char* name : llama_fixtures) {
    CAPTURE(std::string(name));
    const Transformers theirs(name);
    const HuggingFaceFolder folder(theirs.path);
    for (const Device& device : devices_at_every_level()) {
      CAPTURE(level_of(device));
      GPTCase model(folder.model().config, device);
      load_weights(folder.weights(model.gpt.config()), model);
      const Shape shape{Transformers::B, Transformers::T};
      const Tensor ids = Tensor::from(theirs.ids, shape, device);
      Tape inference = model.tape(TapeMode::inference);
      CHECK(relative_error(model.gpt.logits(inference, ids).value().to_doubles(),
                           theirs.expected.read_floats("logits")) < 1e-5);
      Tape tape = model.tape();
      const Var loss = model.gpt.loss(tape, ids, Tensor::from(theirs.targets(), shape, device), {});
      CHECK(relative_error({loss.value().item()}, theirs.expected.read_floats("loss")) < 1e-6);
      tape.backward(loss);
      for (const auto& parameter : model.store.parameters()) {
        CAPTURE(parameter->name);
        CHECK(relative_error(model.source.gradients[parameter.get()],
                             theirs.expected.read_floats("gradient." + parameter->name)) < 1e-5);
      }
    }
  }
}

TEST_CASE("an AdamW step on families with rotary positions matches PyTorch") {
  for (const char* name : llama_fixtures) {
    CAPTURE(std::string(name));
    const Transformers theirs(name);
    const HuggingFaceFolder folder(theirs.path);
    const Device device = Device::cpu();
    ParameterStore store;
    const GPT gpt(store, folder.model().config);
    zero::Engine engine(
        store, device,
        {.update = {.beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f}, .clip_norm = 0.0f});
    zero::load_weights(folder.weights(gpt.config()), engine);
    const Shape shape{Transformers::B, Transformers::T};
    Tape tape = engine.tape();
    const Var loss = gpt.loss(tape, Tensor::from(theirs.ids, shape, device),
                              Tensor::from(theirs.targets(), shape, device), {});
    engine.backward(tape, loss);
    engine.step(1e-3f);
    for (const auto& parameter : store.parameters()) {
      CAPTURE(parameter->name);
      const std::vector<float> values = engine.read(*parameter, zero::Engine::State::master);
      std::vector<float> expected = theirs.expected.read_floats("updated." + parameter->name);
      // Softmax does not change with a bias of all keys: where rope turns nothing that gradient is
      // rounding, and Adam steps by its sign.
      const std::vector<float> gradient =
          theirs.expected.read_floats("gradient." + parameter->name);
      if (parameter->name.ends_with("query_key_value.bias"))
        for (size_t i = 0; i < expected.size(); ++i)
          if (std::abs(gradient[i]) < 1e-6f) expected[i] = values[i];
      CHECK(relative_error({values.begin(), values.end()}, expected) < 1e-5);
    }
  }
}

TEST_CASE("configs of transformers 4 and 5 describe the same model") {
  const json newer = config_json("hf_llama");
  const GPTConfig config = config_of(newer);
  CHECK(config.family == Family::llama);
  CHECK(config.kv_heads == 1);
  CHECK(config.head_size == 6);
  CHECK(config.rope.scaling == RopeScaling::llama3);
  CHECK(config.rope.theta == 100.0);
  json older = newer;
  json rope = older.at("rope_parameters");
  older.erase("rope_parameters");
  older["rope_theta"] = rope.at("rope_theta");
  rope.erase("rope_theta");
  older["rope_scaling"] = rope;
  CHECK(hf_json(config_of(older)) == hf_json(config));
  older["rope_scaling"].erase("rope_type");
  older["rope_scaling"]["type"] = "llama3";
  CHECK(hf_json(config_of(older)) == hf_json(config));
  json gemma = config_json("hf_gemma3");
  const GPTConfig nested = config_of(gemma);
  CHECK(nested.window_period == 2);
  CHECK(nested.local_theta == 100.0);
  for (const char* key : {"rope_parameters", "layer_types"}) gemma.erase(key);
  gemma.update({{"rope_theta", 1000.0},
                {"rope_local_base_freq", 100.0},
                {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  CHECK((config_of(gemma) == nested));
  for (const char* name : llama_fixtures) {
    CAPTURE(std::string(name));
    const GPTConfig model = config_of(config_json(name));
    CHECK((hf_config(hf_json(model), "written").config == model));
  }
}

TEST_CASE(
    "hf_config refuses types of layers and ropes that the model does not have, by their keys") {
  const auto refused = [](const char* name, const json& keys) {
    json config = config_json(name);
    config.update(keys);
    return message_of<Error>([&] { config_of(config); });
  };
  for (const char* name : {"hf_llama", "hf_qwen2", "hf_qwen3"}) {
    CAPTURE(std::string(name));
    const size_t layers = config_json(name).at("num_hidden_layers");
    const auto types = [&](const char* type, size_t count) {
      return json{{"layer_types", std::vector<std::string>(count, type)}};
    };
    const std::string list =
        "config.json: layer_types: expected a list with a type for each of the";
    CHECK(contains(refused(name, types("full_attention", layers + 1)), list));
    CHECK(contains(refused(name, {{"layer_types", "full_attention"}}), list));
    CHECK(contains(refused(name, types("chunked_attention", layers)),
                   "expected full_attention or sliding_attention"));
    const json nested = {{"full_attention", {{"rope_type", "yarn"}, {"factor", 4.0}}}};
    CHECK(contains(refused(name, {{"rope_parameters", nested}, {"rope_scaling", nullptr}}),
                   "config.json: rope_parameters.full_attention is {"));
    if (std::string(name) == "hf_llama")
      CHECK(contains(refused(name, types("sliding_attention", layers)), "expected full_attention"));
    json config = config_json(name);
    config.erase("model_type");
    CHECK_ERROR(FileError, "config.json: model_type is absent; expected the model_type of \"",
                config_of(config));
  }
}

// torch's powers are those of a C library, ours have the same bits on every processor: about one in
// a thousand rounds to the neighbour.
TEST_CASE("frequencies of rotary positions are those that transformers computes") {
  int64_t neighbours = 0, all = 0;
  for (const json& row : json::parse(read_text(std::string(ZG_FIXTURES) + "rope.json"))) {
    CAPTURE(row.at("rope_parameters").dump());
    json config = config_json("hf_llama");
    config["rope_parameters"] = row.at("rope_parameters");
    config["head_dim"] = row.at("head_dim");
    config["max_position_embeddings"] = 131072;
    const std::vector<float> ours = rope_frequencies(config_of(config).rope, row.at("head_dim"));
    REQUIRE(ours.size() == row.at("bits").size());
    for (size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(i);
      const int32_t steps = std::bit_cast<int32_t>(ours[i]) - row.at("bits")[i].get<int32_t>();
      CHECK(std::abs(steps) <= 1);
      neighbours += std::abs(steps);
      ++all;
    }
  }
  CHECK(neighbours * 400 <= all);
}

TEST_CASE("a folder of the base model alone, without names' prefix and head, is read if tied") {
  const HuggingFaceFolder theirs(std::string(ZG_FIXTURES) + "hf_qwen3");
  const GPTConfig whole = theirs.model().config;
  const WeightSource weights = theirs.weights(whole);
  const TemporaryFolder folder;
  std::string note;
  const auto read = [&](bool tied, const auto& name_of_tensor) {
    json config = config_json("hf_qwen3");
    config["tie_word_embeddings"] = tied;
    write_file(folder / "config.json", config.dump());
    std::vector<SafetensorsWriter::Entry> entries;
    std::vector<std::string> ours;
    for (const auto& [name, shape] : weights.shapes)
      if (const std::string own = name_of_tensor(name); !own.empty()) {
        entries.push_back({own, DType::f32, shape});
        ours.push_back(name);
      }
    entries.push_back({"score.weight", DType::i64, {1}});
    SafetensorsWriter writer(folder / "model.safetensors", entries);
    for (const std::string& name : ours) writer.write_floats(weights.read(name));
    writer.write(std::vector<std::byte>(8));
    writer.finish();
    const HuggingFaceFolder there(folder.path());
    return there.weights(there.model().config, &note);
  };
  const std::string table = "model.embed_tokens.weight", head = "lm_head.weight";
  const auto bare = [&](const std::string& name) {
    return name == head ? "" : name.starts_with("model.") ? name.substr(6) : name;
  };
  const WeightSource base = read(true, bare);
  CHECK(base.shapes.size() == weights.shapes.size() - (whole.tied ? 0 : 1));
  for (const auto& [name, shape] : base.shapes) {
    CAPTURE(name);
    CHECK(base.read(name) == weights.read(name));
  }
  CHECK(contains(note, ": 1 tensors are not used, 'score.weight' for one"));
  CHECK_ERROR(FileError, "has no 'lm_head.weight' [", read(false, bare));
  CHECK_ERROR(FileError, "a folder of the base model alone has no head", read(false, bare));
  const auto only_head = [&](const std::string& name) {
    return name == table ? head : name == head ? "" : name;
  };
  CHECK(read(true, only_head).read(table) == weights.read(table));
}

TEST_CASE("angles of rotary positions, which older folders have, are no parameters") {
  const GPTConfig model = config_of(config_json("hf_llama"));
  CHECK(hf_ignores("model.layers.0.self_attn.rotary_emb.inv_freq"));
  CHECK(!hf_ignores("model.layers.0.self_attn.q_proj.weight"));
  GPTConfig odd = model;
  odd.head_size = 7;
  CHECK_ERROR(ConfigError,
              "gpt: head_size: rotary positions turn pairs of elements; expected an even size",
              validate(odd));
}

TEST_CASE(
    "hf_config reads sliding windows of Qwen's layers, and optional keys as transformers does") {
  const auto read = [](const char* name, const json& keys) {
    json config = config_json(name);
    config.update(keys);
    return config_of(config);
  };
  const json in_all = {{"use_sliding_window", true}, {"sliding_window", 4}};
  CHECK(read("hf_llama", in_all).window == 0);
  for (const char* name : {"hf_qwen2", "hf_qwen3"}) {
    CAPTURE(std::string(name));
    const size_t layers = config_json(name).at("num_hidden_layers");
    const auto with = [&](json keys) {
      json config = config_json(name);
      config.erase("layer_types");
      keys.update(in_all);
      config.update(keys);
      return config;
    };
    const std::vector<std::string> types(layers, "sliding_attention");
    CHECK(config_of(with({{"layer_types", types}})).window == 4);
    CHECK(config_of(with({{"max_window_layers", 0}})).window == 4);
    CHECK(config_of(with({{"max_window_layers", layers}})).window == 0);
    CHECK_ERROR(Unsupported,
                "config.json: use_sliding_window is true; expected false, or a window in all",
                config_of(with({{"max_window_layers", 1}})));
    std::vector<std::string> mixed = types;
    mixed[0] = "full_attention";
    CHECK_ERROR(Unsupported, "config.json: layer_types is [\"full_attention\"",
                config_of(with({{"layer_types", mixed}})));
    const GPTConfig model = config_of(with({{"layer_types", types}}));
    CHECK((hf_config(hf_json(model), "written").config == model));
    CHECK(read(name, json{{"num_key_value_heads", nullptr}}).kv_heads ==
          config_of(config_json(name)).heads);
  }
  json whole = config_json("hf_llama");
  whole.at("rope_parameters").erase("original_max_position_embeddings");
  CHECK(config_of(whole).rope.original_positions == whole.at("max_position_embeddings"));
  whole["original_max_position_embeddings"] = 17;
  CHECK(config_of(whole).rope.original_positions == 17);
}

TEST_CASE("hf_config refuses keys that contradict each other or mean another model") {
  const auto refused = [](const char* key, const json& value, const std::string& words) {
    json config = config_json("hf_llama");
    config[key] = value;
    const std::string message =
        message_of<Unsupported>([&] { hf_config(config.dump(), "c.json"); });
    CHECK_MESSAGE(contains(message, "c.json: " + std::string(key) + " is " + words), message);
  };
  const json theirs = config_json("hf_llama").at("rope_parameters");
  json other = theirs;
  other["factor"] = 3.0;
  refused("rope_scaling", other, other.dump().substr(0, 20));
  refused("rope_theta", 5.0, "5.0; expected " + theirs.at("rope_theta").dump());
  refused("original_max_position_embeddings", 8, "8; expected 32");
  refused("partial_rotary_factor", 0.5, "0.5; expected 1.0");
  refused("is_causal", false, "false; expected true");
  json same = config_json("hf_llama");
  same["rope_scaling"] = theirs;
  CHECK((config_of(same) == config_of(config_json("hf_llama"))));
}

TEST_CASE("hf_config refuses unsupported settings of Llama's family and names the key") {
  const auto message = [](const char* name, const char* key, const json& value) {
    json config = config_json(name);
    config[key] = value;
    return message_of<Error>([&] { hf_config(config.dump(), "c.json"); });
  };
  CHECK(contains(
      message("hf_llama", "model_type", "gemma3"),
      "c.json: model_type is \"gemma3\"; expected gpt2, bloom, llama, mistral, qwen2, qwen3, "
      "gpt_neox, olmo2, gemma3_text or phi3"));
  const std::pair<const char*, std::pair<const char*, json>> others[] = {
      {"hf_gpt_neox", {"attention_bias", false}},
      {"hf_gpt_neox", {"hidden_act", "relu"}},
      {"hf_gemma3", {"final_logit_softcapping", 30.0}},
      {"hf_gemma3", {"use_bidirectional_attention", true}},
      {"hf_gemma3", {"layer_types", {"full_attention", "sliding_attention", "sliding_attention"}}},
      {"hf_phi3", {"resid_pdrop", 0.1}},
      {"hf_olmo2", {"attention_bias", true}}};
  for (const auto& [name, setting] : others)
    CHECK(contains(
        message(name, setting.first, setting.second),
        fmt::format("c.json: {} is {}", setting.first, setting.second.dump().substr(0, 16))));
  const auto with_rope = [&](const char* name, const char* key, const json& value) {
    json rope = config_json(name).at("rope_parameters");
    rope[key] = value;
    return message(name, "rope_parameters", rope);
  };
  CHECK(contains(with_rope("hf_gpt_neox", "partial_rotary_factor", 0.4),
                 "expected a share that rotates an even number of a head's 8 elements"));
  CHECK(contains(with_rope("hf_phi3", "rope_type", "linear"),
                 "rope_type is \"linear\"; expected default or longrope"));
  CHECK(contains(with_rope("hf_phi3", "long_factor", {1.0, 2.0}),
                 "long_factor: expected a list of 3 numbers, one for each rotated pair of a head"));
  CHECK(contains(with_rope("hf_phi3", "attention_factor", 0.0),
                 "rope_parameters.attention_factor: expected a number above 0"));
  // transformers reads it outside of rope_parameters.
  CHECK(contains(message("hf_phi3", "original_max_position_embeddings", nullptr),
                 "rope_parameters.original_max_position_embeddings is 8; expected the 4096 of "
                 "c.json: original_max_position_embeddings"));
  CHECK(contains(with_rope("hf_gemma3", "sliding_attention", {{"type", "linear"}, {"factor", 4.0}}),
                 "rope_parameters.sliding_attention.type is \"linear\"; expected \"default\""));
  CHECK(contains(message("hf_llama", "hidden_act", "relu"), "c.json: hidden_act is \"relu\""));
  CHECK(contains(message("hf_llama", "mlp_bias", true), "c.json: mlp_bias is true"));
  CHECK(contains(message("hf_llama", "rope_parameters", {{"rope_type", "longrope"}}),
                 "rope_type is \"longrope\"; expected default, linear, llama3 or yarn"));
  // transformers requires these keys.
  const auto without = [](const char* key) {
    json config = config_json("hf_llama");
    config.at("rope_parameters").erase(key);
    return message_of<FileError>([&] { hf_config(config.dump(), "c.json"); });
  };
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"})
    CHECK(contains(without(key),
                   fmt::format("c.json: rope_parameters.{}: expected a number, got null", key)));
  CHECK(contains(message("hf_qwen2", "rope_scaling", "yarn"),
                 "c.json: rope_scaling: expected an object"));
  CHECK(contains(message("hf_qwen3", "attention_bias", true), "c.json: attention_bias is true"));
  CHECK(contains(message("hf_llama", "num_key_value_heads", 2),
                 "num_key_value_heads: expected a divisor of the 5 heads, got 2"));
}

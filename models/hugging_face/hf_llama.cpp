#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hf_families.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json_node.h"

// config.json of Llama, Mistral, Qwen2 and Qwen3.
namespace zg::models {

using nlohmann::json;

namespace {

/// The class of transformers, and its values for keys that a config.json leaves out.
struct LlamaClass {
  const char* name;
  int64_t vocabulary, hidden, kv_heads, positions, head_size;  // kv_heads 0: as many as heads
  std::vector<int32_t> eos = {};
  std::optional<int32_t> bos = {};
};
LlamaClass class_of(Family family) {
  if (family == Family::mistral) return {"MistralForCausalLM", 32000, 14336, 8, 131072, 0, {2}, 1};
  if (family == Family::qwen2) return {"Qwen2ForCausalLM", 151936, 22016, 32, 32768, 0};
  if (family == Family::qwen3) return {"Qwen3ForCausalLM", 151936, 22016, 32, 32768, 128};
  return {"LlamaForCausalLM", 32000, 11008, 0, 2048, 0, {2}, 1};
}

/// `rope_scaling` of transformers 4 (`type` or `rope_type`), or `rope_parameters` of 5. A key is
/// required where transformers requires it: another value would be another model.
void read_rope(const JsonNode& theirs, GPTConfig& config) {
  RopeOptions& rope = config.rope;
  const JsonNode newer = theirs.at("rope_parameters");
  const bool is_newer = !newer.value.is_null();
  const JsonNode scaling = is_newer ? newer : theirs.at("rope_scaling");
  if (!scaling.value.is_null() && !scaling.value.is_object()) scaling.fail("an object");
  // Which of two values counts depends on the version of transformers.
  const JsonNode older = theirs.at("rope_scaling");
  if (is_newer && !older.value.is_null() && older.value != newer.value)
    older.refuse("it absent, or equal to rope_parameters");
  const auto once = [&](const char* key) {
    const JsonNode outer = theirs.at(key);
    if (!scaling.value.is_object() || !scaling.value.contains(key)) return outer;
    const JsonNode inner = scaling.at(key);
    if (!outer.value.is_null() && outer.value != inner.value) outer.refuse(inner.value.dump());
    return inner;
  };
  rope.theta = once("rope_theta").number(1e4);
  once("partial_rotary_factor").require(1.0);
  if (scaling.value.is_null()) return;
  for (const auto& [key, value] : scaling.value.items())
    if (value.is_object()) scaling.at(key).refuse("no object: one rope for all layers");
  const JsonNode type = scaling.at(scaling.value.contains("rope_type") ? "rope_type" : "type");
  if (type.value.is_null() || type.text() == "default") return;
  const auto required = [&scaling](const char* key) {
    const JsonNode node = scaling.at(key);
    if (node.value.is_null()) node.fail("a number");
    return node;
  };
  constexpr const char* original = "original_max_position_embeddings";
  if (type.text() == "linear") {
    rope.scaling = RopeScaling::linear;
  } else if (type.text() == "llama3") {
    rope.scaling = RopeScaling::llama3;
    rope.original_positions = once(original).count(config.positions);
    rope.low_freq_factor = required("low_freq_factor").number(1.0);
    rope.high_freq_factor = required("high_freq_factor").number(4.0);
  } else if (type.text() == "yarn") {
    rope.scaling = RopeScaling::yarn;
    rope.original_positions = once(original).count(config.positions);
    rope.beta_fast = scaling.at("beta_fast").number(rope.beta_fast);
    rope.beta_slow = scaling.at("beta_slow").number(rope.beta_slow);
    const JsonNode factor = scaling.at("attention_factor");
    rope.attention_factor = factor.number(0.0);
    if (!factor.value.is_null() && !(rope.attention_factor > 0.0)) factor.fail("a number above 0");
    rope.truncate = scaling.at("truncate").flag(true);
    scaling.at("mscale").require(nullptr);
    scaling.at("mscale_all_dim").require(nullptr);
  } else {
    type.refuse("default, linear, llama3 or yarn");
  }
  rope.factor = required("factor").number(1.0);
}

/// The sliding window; 0: none. Qwen's configs have one, and use it in all, some or no layers.
int64_t window_of(const JsonNode& theirs, Family family, int64_t layers) {
  const JsonNode window = theirs.at("sliding_window"), types = theirs.at("layer_types");
  if (!types.value.is_null()) {
    if (!types.value.is_array() || std::ssize(types.value) != layers)
      types.fail(fmt::format("a list with a type for each of the {} layers", layers));
    for (const json& type : types.value)
      if (type != "full_attention" && type != "sliding_attention")
        types.refuse("full_attention or sliding_attention");
      else if (type == "sliding_attention" && family == Family::llama)
        types.refuse("full_attention");
  }
  if (family == Family::mistral) {
    constexpr int64_t absent = 4096;
    return theirs.value.contains("sliding_window") ? window.count(0) : absent;
  }
  if (family == Family::llama) return 0;  // transformers does not look at it
  // layer_types says it of each layer. Without it layers from max_window_layers on have the window.
  const JsonNode uses = theirs.at("use_sliding_window");
  const bool has_key = theirs.value.contains("sliding_window");
  const int64_t size = has_key && window.value.is_null() ? 0 : window.count(4096);
  int64_t with_window = 0;
  if (types.value.is_array()) {
    for (const json& type : types.value) with_window += type == "sliding_attention";
    if (with_window > 0 && (with_window < layers || !uses.flag(false) || size == 0))
      types.refuse("the same for all layers, and a window only with use_sliding_window");
  } else if (uses.flag(false) && size > 0) {
    const double without =
        std::clamp(theirs.at("max_window_layers").number(28.0), 0.0, static_cast<double>(layers));
    with_window = layers - static_cast<int64_t>(without);
    if (with_window > 0 && with_window < layers)
      uses.refuse("false, or a window in all layers (max_window_layers 0)");
  }
  return with_window > 0 ? size : 0;
}

/// In the keys of transformers 4, which 5 reads, too.
json rope_scaling_of(const GPTConfig& config) {
  const RopeOptions& rope = config.rope;
  if (rope.scaling == RopeScaling::none) return nullptr;
  json scaling = {{"rope_type", name_of(rope.scaling)}, {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::linear) return scaling;
  scaling["original_max_position_embeddings"] = rope.original_positions;
  if (rope.scaling == RopeScaling::llama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  } else {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    scaling["truncate"] = rope.truncate;
    if (rope.attention_factor > 0.0) scaling["attention_factor"] = rope.attention_factor;
  }
  return scaling;
}

}  // namespace

HFModel hf_llama_config(const JsonNode& theirs, Family family) {
  GPTConfig config = GPTConfig::of(family);
  const LlamaClass absent = class_of(family);
  config.width = theirs.at("hidden_size").count(4096);
  config.layers = theirs.at("num_hidden_layers").count(32);
  config.heads = theirs.at("num_attention_heads").count(32);
  const bool has_kv_heads = theirs.value.contains("num_key_value_heads");  // null: as many as heads
  config.kv_heads = theirs.at("num_key_value_heads")
                        .count(absent.kv_heads && !has_kv_heads ? absent.kv_heads : config.heads);
  config.head_size = theirs.at("head_dim").count(absent.head_size);
  if (config.head_size * config.heads == config.width) config.head_size = 0;  // the default
  config.hidden = theirs.at("intermediate_size").count(absent.hidden);
  config.vocabulary = theirs.at("vocab_size").count(absent.vocabulary);
  config.positions = theirs.at("max_position_embeddings").count(absent.positions);
  config.block_size = std::min(config.positions, rope_sequence);
  config.norm_epsilon = epsilon_at(theirs, "rms_norm_eps", 1e-6);
  config.tied = theirs.at("tie_word_embeddings").flag(false);
  theirs.at("attention_dropout").require(0.0);
  theirs.at("hidden_act").require("silu");
  theirs.at("mlp_bias").require(false);
  theirs.at("quantization_config").require(nullptr);
  const JsonNode bias = theirs.at("attention_bias");
  if (family == Family::llama)
    config.qkv_bias = config.bias = bias.flag(false);
  else
    bias.require(family == Family::qwen2);
  read_rope(theirs, config);
  config.window = window_of(theirs, family, config.layers);
  return {.config = config,
          .tokens = hf_tokens(theirs, {.bos = absent.bos, .pad = {}, .eos = absent.eos},
                              config.vocabulary)};
}

json hf_llama_json(const GPTConfig& config) {
  json written = {
      {"architectures", {class_of(config.family).name}},
      {"model_type", name_of(config.family)},
      {"vocab_size", config.vocabulary},
      {"hidden_size", config.width},
      {"intermediate_size", hidden_of(config)},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", kv_heads_of(config)},
      {"head_dim", head_size_of(config)},
      {"hidden_act", "silu"},
      {"max_position_embeddings", config.positions > 0 ? config.positions : config.block_size},
      {"rms_norm_eps", hf_number(config.norm_epsilon)},
      {"rope_theta", config.rope.theta},
      {"rope_scaling", rope_scaling_of(config)},
      {"initializer_range", 0.02},
      {"attention_dropout", 0.0},
      {"tie_word_embeddings", config.tied},
      {"use_cache", true}};
  if (config.family == Family::llama) {
    written["attention_bias"] = config.qkv_bias;
    written["mlp_bias"] = false;
  }
  if (config.family == Family::mistral)
    written["sliding_window"] = config.window > 0 ? json(config.window) : json(nullptr);
  if (config.family == Family::qwen2 || config.family == Family::qwen3) {
    written["use_sliding_window"] = config.window > 0;
    written["sliding_window"] = config.window > 0 ? json(config.window) : json(nullptr);
    if (config.window > 0) {
      written["max_window_layers"] = 0;
      written["layer_types"] =
          std::vector<std::string>(static_cast<size_t>(config.layers), "sliding_attention");
    }
  }
  return written;
}

}  // namespace zg::models

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/json_text.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

using nlohmann::json;

/// One value that may have several keys. Those that are present must be equal.
int64_t count(const JsonNode& config, std::initializer_list<const char*> keys, int64_t absent) {
  const char* first = nullptr;
  for (const char* key : keys) {
    const JsonNode node = config.at(key);
    if (node.value.is_null()) continue;
    const int64_t value = node.count(absent);
    if (first && value != absent) node.fail(fmt::format("{} as {} says", absent, first));
    first = key;
    absent = value;
  }
  return absent;
}

/// Token ids: one, several, or none for null.
std::vector<int32_t> ids_at(const JsonNode& config, const char* key, std::vector<int32_t> absent) {
  if (!config.value.contains(key)) return absent;
  const JsonNode node = config.at(key);
  std::vector<int32_t> ids;
  const auto add = [&](const json& id) {
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() &&
         id.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}))
      node.fail("the id of a token, a list of them or null");
    if (id.is_number_unsigned()) ids.push_back(id.get<int32_t>());  // -1 stands for none
  };
  if (node.value.is_array())
    for (const json& id : node.value) add(id);
  else if (!node.value.is_null())
    add(node.value);
  return ids;
}

constexpr double default_epsilon = 1e-5;  // layer_norm_epsilon of GPT-2 and BLOOM

/// The shortest decimal number for a float: 0.1f gives 0.1 and not 0.100000001.
double hf_number(float value) {
  char digits[32];
  double number = 0.0;
  std::from_chars(digits, std::to_chars(digits, std::end(digits), value).ptr, number);
  return number;
}

float epsilon_at(const JsonNode& theirs, const char* key, double absent) {
  return static_cast<float>(theirs.at(key).number(absent));
}

/// The special tokens of a config that are in the vocabulary.
SpecialTokens hf_tokens(const JsonNode& theirs, const SpecialTokens& absent, int64_t vocabulary) {
  const auto known = [&](const char* key, const std::vector<int32_t>& otherwise) {
    std::vector<int32_t> ids = ids_at(theirs, key, otherwise);
    std::erase_if(ids, [&](int32_t id) { return id >= vocabulary; });
    return ids;
  };
  const auto first = [&](const char* key, std::optional<int32_t> otherwise) {
    const std::vector<int32_t> ids =
        known(key, otherwise ? std::vector{*otherwise} : std::vector<int32_t>());
    return ids.empty() ? std::nullopt : std::optional(ids.front());
  };
  return {.bos = first("bos_token_id", absent.bos),
          .pad = first("pad_token_id", absent.pad),
          .eos = known("eos_token_id", absent.eos)};
}

constexpr int64_t published_vocabulary = 50257;
constexpr int32_t end_of_text = 50256;  // <|endoftext|>

// The tanh approximation of GELU has five names in transformers.
constexpr const char* tanh_gelus[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh",
                                      "gelu_fast", "gelu_accurate"};

void require_our_arithmetic(const JsonNode& theirs) {
  const JsonNode activation = theirs.at("activation_function");
  if (!activation.value.is_null() && std::find(std::begin(tanh_gelus), std::end(tanh_gelus),
                                               activation.value) == std::end(tanh_gelus))
    activation.refuse("\"gelu_new\" or another name of the tanh approximation");
  theirs.at("scale_attn_weights").require(true);
  theirs.at("scale_attn_by_inverse_layer_idx").require(false);
  theirs.at("add_cross_attention").require(false);
  theirs.at("pruned_heads").require(json::object());
  theirs.at("quantization_config").require(nullptr);
}

HFModel hf_gpt2_config(const JsonNode& theirs) {
  GPTConfig config;
  config.width = count(theirs, {"n_embd", "hidden_size"}, 768);
  require_our_arithmetic(theirs);
  config.layers = count(theirs, {"n_layer", "num_hidden_layers"}, 12);
  config.heads = count(theirs, {"n_head", "num_attention_heads"}, 12);
  config.vocabulary = theirs.at("vocab_size").count(published_vocabulary);
  config.block_size = count(theirs, {"n_positions", "max_position_embeddings"}, 1024);
  config.hidden = theirs.at("n_inner").count(0);
  if (config.hidden == 4 * config.width) config.hidden = 0;  // the default
  config.norm_epsilon = epsilon_at(theirs, "layer_norm_epsilon", default_epsilon);
  config.tied = theirs.at("tie_word_embeddings").flag(true);
  const double dropout = theirs.at("resid_pdrop").number(0.1);
  config.dropout = static_cast<float>(dropout);
  const bool one_for_all = theirs.at("embd_pdrop").number(0.1) == dropout &&
                           theirs.at("attn_pdrop").number(0.1) == dropout;
  return {.config = config,
          .tokens = hf_tokens(theirs, {.bos = end_of_text, .pad = {}, .eos = {end_of_text}},
                              config.vocabulary),
          .dropouts = one_for_all ? "" : "resid_pdrop, embd_pdrop and attn_pdrop"};
}

/// Without tokens.
json hf_gpt2_json(const GPTConfig& config) {
  const double dropout = hf_number(config.dropout);
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"vocab_size", config.vocabulary},
          {"n_positions", config.block_size},
          {"n_ctx", config.block_size},
          {"n_embd", config.width},
          {"n_layer", config.layers},
          {"n_head", config.heads},
          {"n_inner", config.hidden > 0 ? json(config.hidden) : json(nullptr)},
          {"layer_norm_epsilon", hf_number(config.norm_epsilon)},
          {"resid_pdrop", dropout},
          {"embd_pdrop", dropout},
          {"attn_pdrop", dropout},
          {"initializer_range", 0.02},
          {"scale_attn_weights", true},
          {"tie_word_embeddings", config.tied},
          {"torch_dtype", "float32"},
          {"use_cache", true}};
}

HFModel hf_bloom_config(const JsonNode& theirs) {
  GPTConfig config = bloom_family;
  // Published files have the second names; transformers writes the first.
  config.width = count(theirs, {"hidden_size", "n_embed"}, 64);
  config.layers = count(theirs, {"n_layer", "num_hidden_layers"}, 2);
  config.heads = count(theirs, {"n_head", "num_attention_heads"}, 8);
  config.vocabulary = theirs.at("vocab_size").count(bloom_vocabulary);
  config.block_size = theirs.at("seq_length").count(bloom_sequence);
  config.tied = theirs.at("tie_word_embeddings").flag(true);
  // With several parts transformers leaves out biases here.
  if (theirs.at("pretraining_tp").count(1) > 1) theirs.at("slow_but_exact").require(false);
  config.norm_epsilon = epsilon_at(theirs, "layer_norm_epsilon", default_epsilon);
  theirs.at("apply_residual_connection_post_layernorm").require(false);
  theirs.at("n_inner").require(4 * config.width);
  theirs.at("pruned_heads").require(json::object());
  theirs.at("quantization_config").require(nullptr);
  const double dropout = theirs.at("hidden_dropout").number(0.0);
  config.dropout = static_cast<float>(dropout);
  const bool one_for_all = theirs.at("attention_dropout").number(0.0) == dropout;
  return {.config = config,
          .tokens = hf_tokens(theirs, {.bos = 1, .pad = {}, .eos = {2}}, config.vocabulary),
          .dropouts = one_for_all ? "" : "hidden_dropout and attention_dropout"};
}

/// Without tokens.
json hf_bloom_json(const GPTConfig& config) {
  return {{"architectures", {"BloomForCausalLM"}},
          {"model_type", "bloom"},
          {"vocab_size", config.vocabulary},
          {"hidden_size", config.width},
          {"n_layer", config.layers},
          {"n_head", config.heads},
          {"seq_length", config.block_size},
          {"layer_norm_epsilon", hf_number(config.norm_epsilon)},
          {"apply_residual_connection_post_layernorm", false},
          {"hidden_dropout", hf_number(config.dropout)},
          {"attention_dropout", hf_number(config.dropout)},
          {"initializer_range", 0.02},
          {"pretraining_tp", 1},
          {"slow_but_exact", false},
          {"tie_word_embeddings", config.tied},
          {"torch_dtype", "float32"},
          {"use_cache", true}};
}

// --- Llama, Mistral, Qwen2, Qwen3 ---

/// Values of transformers for keys that a config.json of the family leaves out.
struct LlamaDefaults {
  int64_t vocabulary, hidden, kv_heads, positions, head_size;  // kv_heads 0: as many as heads
  std::vector<int32_t> eos;
  std::optional<int32_t> bos;
};
LlamaDefaults llama_defaults(Family family) {
  switch (family) {
    case Family::mistral:
      return {32000, 14336, 8, 131072, 0, {2}, 1};
    case Family::qwen2:
      return {151936, 22016, 32, 32768, 0, {}, {}};
    case Family::qwen3:
      return {151936, 22016, 32, 32768, 128, {}, {}};
    default:
      return {32000, 11008, 0, 2048, 0, {2}, 1};
  }
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
  const JsonNode window = theirs.at("sliding_window");
  if (family == Family::mistral) {
    constexpr int64_t absent = 4096;
    return theirs.value.contains("sliding_window") ? window.count(0) : absent;
  }
  if (family == Family::llama) {
    window.require(nullptr);
    return 0;
  }
  // layer_types says it of each layer. Without it layers from max_window_layers on have the window.
  const JsonNode uses = theirs.at("use_sliding_window"), types = theirs.at("layer_types");
  const bool has_key = theirs.value.contains("sliding_window");
  const int64_t size = has_key && window.value.is_null() ? 0 : window.count(4096);
  int64_t with_window = 0;
  if (types.value.is_array()) {
    for (const json& type : types.value) with_window += type == "sliding_attention";
    if (with_window > 0 && (with_window < layers || !uses.flag(false) || size == 0))
      types.refuse("the same for all layers, and a window only with use_sliding_window");
  } else if (uses.flag(false) && size > 0) {
    const double first = theirs.at("max_window_layers").number(28.0);
    with_window =
        std::clamp(layers - static_cast<int64_t>(std::clamp(first, 0.0, 1e9)), int64_t{0}, layers);
    if (with_window > 0 && with_window < layers)
      uses.refuse("false, or a window in all layers (max_window_layers 0)");
  }
  return with_window > 0 ? size : 0;
}

HFModel hf_llama_config(const JsonNode& theirs, Family family) {
  GPTConfig config = GPTConfig::of(family);
  const LlamaDefaults absent = llama_defaults(family);
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

const char* hf_class(Family family) {
  switch (family) {
    case Family::mistral:
      return "MistralForCausalLM";
    case Family::qwen2:
      return "Qwen2ForCausalLM";
    case Family::qwen3:
      return "Qwen3ForCausalLM";
    default:
      return "LlamaForCausalLM";
  }
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

/// Without tokens.
json hf_llama_json(const GPTConfig& config) {
  json written = {
      {"architectures", {hf_class(config.family)}},
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
      {"torch_dtype", "float32"},
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

HFModel read(const JsonNode& theirs) {
  theirs.at("is_causal").require(true);
  const JsonNode type = theirs.at("model_type");
  if (type.value.is_null() || type.value == "gpt2") return hf_gpt2_config(theirs);
  if (type.value == "bloom") return hf_bloom_config(theirs);
  for (const Family family : all_families)
    if (has_llama_names(family) && type.value == name_of(family))
      return hf_llama_config(theirs, family);
  type.refuse("gpt2, bloom, llama, mistral, qwen2 or qwen3");
}

/// Equal for two configs if their models compute the same: fields that stand for a default have its
/// value, and those that concern only training or the length of a run have none.
GPTConfig model_of(GPTConfig config) {
  config.kv_heads = kv_heads_of(config);
  config.head_size = head_size_of(config);
  config.hidden = hidden_of(config);
  config.block_size = config.positions = 0;
  config.dropout = 0.0f;
  if (config.position != Position::rope) {
    config.rope = {};
    config.rotated_share = 1.0;
  }
  return config;
}

/// Throws Unsupported, with the field, unless a config.json describes the model.
void require_same_model(const GPTConfig& config, const GPTConfig& written) {
  const GPTConfig ours = model_of(config), theirs = model_of(written);
  const auto require = [&](const char* field, const auto& value, const auto& other) {
    if (value != other)
      throw Unsupported(
          fmt::format("export: {} is {}; expected {}: the {} of transformers has no other", field,
                      value, other, hf_title(config.family)));
  };
  require("position", std::string(name_of(ours.position)), std::string(name_of(theirs.position)));
  require("embedding_norm", ours.embedding_norm, theirs.embedding_norm);
  require("head_size", ours.head_size, theirs.head_size);
  require("hidden", ours.hidden, theirs.hidden);
  require("window", ours.window, theirs.window);
  require("rotated_share", ours.rotated_share, theirs.rotated_share);
  require("norm", std::string(name_of(ours.norm)), std::string(name_of(theirs.norm)));
  require("mlp", std::string(name_of(ours.mlp)), std::string(name_of(theirs.mlp)));
  require("bias", ours.bias, theirs.bias);
  require("qkv_bias", ours.qkv_bias, theirs.qkv_bias);
  require("query_key_norm", ours.query_key_norm, theirs.query_key_norm);
  if (ours != theirs)
    throw Unsupported(fmt::format("export: the {} of transformers cannot have this model's sizes",
                                  hf_title(config.family)));
}

json id_of(std::optional<int32_t> token) { return token ? json(*token) : json(nullptr); }

// Like transformers: one id as a number, several as a list.
json ids_of(const std::vector<int32_t>& tokens) {
  return tokens.empty() ? json(nullptr) : tokens.size() == 1 ? json(tokens.front()) : json(tokens);
}

}  // namespace

HFModel hf_config(const std::string& text, const std::string& path) {
  const json config = parse_json_object(text, path);
  const HFModel model = read({config, path + ": "});
  try {
    validate(model.config);
  } catch (const ConfigError& error) {
    throw FileError(path + ": " + error.what());
  }
  return model;
}

void read_hf_generation(const std::string& text, const std::string& path, HFModel& model) {
  const json config = parse_json_object(text, path);
  model.tokens = hf_tokens({config, path + ": "}, model.tokens, model.config.vocabulary);
}

std::string hf_json(const GPTConfig& config, const SpecialTokens& tokens) {
  json written = has_llama_names(config.family)   ? hf_llama_json(config)
                 : config.family == Family::bloom ? hf_bloom_json(config)
                                                  : hf_gpt2_json(config);
  written["bos_token_id"] = id_of(tokens.bos);
  written["eos_token_id"] = ids_of(tokens.eos);
  written["pad_token_id"] = id_of(tokens.pad);
  std::string text = written.dump(2) + "\n";
  require_same_model(config, hf_config(text, "export").config);
  return text;
}

std::string hf_generation_json(const SpecialTokens& tokens) {
  json written = {{"_from_model_config", true}};
  if (tokens.bos) written["bos_token_id"] = *tokens.bos;
  if (!tokens.eos.empty()) written["eos_token_id"] = ids_of(tokens.eos);
  if (tokens.pad) written["pad_token_id"] = *tokens.pad;
  return written.dump(2) + "\n";
}

const char* hf_title(Family family) {
  constexpr const char* titles[] = {"GPT-2", "BLOOM", "Llama", "Mistral", "Qwen2", "Qwen3"};
  return titles[static_cast<size_t>(family)];
}

}  // namespace zg::models

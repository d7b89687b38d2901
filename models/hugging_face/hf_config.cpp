#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hf_families.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json_node.h"

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

}  // namespace

std::vector<int32_t> hf_ids(const JsonNode& config, const char* key, std::vector<int32_t> absent) {
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

double hf_number(float value) {
  char digits[32];
  double number = 0.0;
  std::from_chars(digits, std::to_chars(digits, std::end(digits), value).ptr, number);
  return number;
}

nlohmann::json hf_id(std::optional<int32_t> token) { return token ? json(*token) : json(nullptr); }

// Like transformers: one id as a number, several as a list.
nlohmann::json hf_ids(const std::vector<int32_t>& tokens) {
  return tokens.empty() ? json(nullptr) : tokens.size() == 1 ? json(tokens.front()) : json(tokens);
}

bool is_tanh_gelu(const JsonNode& activation) {
  constexpr const char* names[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast",
                                   "gelu_accurate"};
  return std::find(std::begin(names), std::end(names), activation.value) != std::end(names);
}

void set_hf_dtype(nlohmann::json& config, DType dtype) {
  config["dtype"] = config["torch_dtype"] = dtype == DType::bf16  ? "bfloat16"
                                            : dtype == DType::f16 ? "float16"
                                                                  : "float32";
}

float epsilon_at(const JsonNode& theirs, const char* key, double absent) {
  return static_cast<float>(theirs.at(key).number(absent));
}

SpecialTokens hf_tokens(const JsonNode& theirs, const SpecialTokens& absent, int64_t vocabulary) {
  const auto known = [&](const char* key, const std::vector<int32_t>& otherwise) {
    std::vector<int32_t> ids = hf_ids(theirs, key, otherwise);
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

namespace {

constexpr double default_epsilon = 1e-5;  // layer_norm_epsilon of GPT-2 and BLOOM

constexpr int64_t published_vocabulary = 50257;
constexpr int32_t end_of_text = 50256;  // <|endoftext|>

void require_our_arithmetic(const JsonNode& theirs) {
  const JsonNode activation = theirs.at("activation_function");
  if (!activation.value.is_null() && !is_tanh_gelu(activation))
    activation.refuse("\"gelu_new\" or another name of the tanh approximation");
  theirs.at("scale_attn_weights").require(true);
  theirs.at("scale_attn_by_inverse_layer_idx").require(false);
  theirs.at("add_cross_attention").require(false);
  theirs.at("pruned_heads").require(json::object());
  theirs.at("quantization_config").require(nullptr);
}

double share_at(const JsonNode& theirs, const char* key, double absent) {
  const double share = theirs.at(key).number(absent);
  if (!(share >= 0.0 && share <= 1.0)) theirs.at(key).fail("a share from 0 to 1");
  return share;
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
  const double dropout = share_at(theirs, "resid_pdrop", 0.1);
  config.dropout = static_cast<float>(dropout);
  const bool one_for_all = share_at(theirs, "embd_pdrop", 0.1) == dropout &&
                           share_at(theirs, "attn_pdrop", 0.1) == dropout;
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
  const double dropout = share_at(theirs, "hidden_dropout", 0.0);
  config.dropout = static_cast<float>(dropout);
  const bool one_for_all = share_at(theirs, "attention_dropout", 0.0) == dropout;
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
          {"use_cache", true}};
}

HFModel read(const JsonNode& theirs) {
  theirs.at("is_causal").require(true);
  const JsonNode type = theirs.at("model_type");
  const JsonNode classes = theirs.at("architectures");
  if (type.value.is_null() && classes.value.is_array() && !classes.value.empty() &&
      !brief(classes.value[0]).starts_with("\"GPT2"))
    throw FileError(fmt::format("{} is absent; expected the model_type of {}", type.name,
                                brief(classes.value[0])));
  if (type.value.is_null() || type.value == "gpt2") return hf_gpt2_config(theirs);
  if (type.value == "bloom") return hf_bloom_config(theirs);
  for (const Family family : all_families)
    if (has_llama_names(family) && type.value == name_of(family))
      return hf_llama_config(theirs, family);
  if (type.value == "blenderbot" || type.value == "bart")
    type.refuse(
        "a decoder (gpt2, bloom, llama, mistral, qwen2 or qwen3): Seq2SeqFolder "
        "(models/hugging_face/hf_seq2seq.h) reads encoder-decoders");
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
    throw Unsupported(
        fmt::format("export: rope has options that the {} of transformers does not use; expected "
                    "only those of its scaling {}",
                    hf_title(config.family), name_of(ours.rope.scaling)));
}

// The message of validate() with the file's key in place of GPTConfig's field.
std::string with_key(const std::string& message, Family family) {
  struct Key {
    const char *field, *gpt2, *bloom, *llama;
  };
  constexpr Key keys[] = {
      {"gpt: layers: ", "n_layer", "n_layer", "num_hidden_layers"},
      {"gpt: width: ", "n_embd", "hidden_size", "hidden_size"},
      {"gpt: heads: ", "n_head", "n_head", "num_attention_heads"},
      {"gpt: kv_heads: ", nullptr, nullptr, "num_key_value_heads"},
      {"gpt: head_size: ", nullptr, nullptr, "head_dim"},
      {"gpt: hidden: ", "n_inner", nullptr, "intermediate_size"},
      {"gpt: vocabulary: ", "vocab_size", "vocab_size", "vocab_size"},
      {"gpt: block_size: ", "n_positions", "seq_length", "max_position_embeddings"},
      {"gpt: positions: ", nullptr, nullptr, "max_position_embeddings"},
      {"gpt: window: ", nullptr, nullptr, "sliding_window"},
      {"gpt: rotated_share: ", nullptr, nullptr, "partial_rotary_factor"},
      {"gpt: norm_epsilon: ", "layer_norm_epsilon", "layer_norm_epsilon", "rms_norm_eps"},
      {"rope: theta: ", nullptr, nullptr, "rope_theta"}};
  for (const Key& key : keys) {
    const char* name = family == Family::gpt     ? key.gpt2
                       : family == Family::bloom ? key.bloom
                                                 : key.llama;
    if (name && message.starts_with(key.field))
      return fmt::format("{}: {}", name, message.substr(std::string_view(key.field).size()));
  }
  return message;
}

}  // namespace

HFModel hf_config(const std::string& text, const std::string& path) {
  const json config = parse_json_object(text, path);
  const HFModel model = read({config, path + ": "});
  try {
    validate(model.config);
  } catch (const ConfigError& error) {
    throw FileError(path + ": " + with_key(error.what(), model.config.family));
  }
  return model;
}

void read_hf_generation(const std::string& text, const std::string& path, HFModel& model) {
  const json config = parse_json_object(text, path);
  model.tokens = hf_tokens({config, path + ": "}, model.tokens, model.config.vocabulary);
  model.generation_json = text;
}

std::string hf_json(const GPTConfig& config, const SpecialTokens& tokens, DType dtype) {
  json written = has_llama_names(config.family)   ? hf_llama_json(config)
                 : config.family == Family::bloom ? hf_bloom_json(config)
                                                  : hf_gpt2_json(config);
  set_hf_dtype(written, dtype);
  written["bos_token_id"] = hf_id(tokens.bos);
  written["eos_token_id"] = hf_ids(tokens.eos);
  written["pad_token_id"] = hf_id(tokens.pad);
  std::string text = written.dump(2) + "\n";
  require_same_model(config, hf_config(text, "export").config);
  return text;
}

std::string hf_generation_json(const SpecialTokens& tokens, const std::string& read) {
  json written = read.empty() ? json{{"_from_model_config", true}}
                              : parse_json_object(read, "generation_config.json");
  if (tokens.bos) written["bos_token_id"] = *tokens.bos;
  if (!tokens.eos.empty()) written["eos_token_id"] = hf_ids(tokens.eos);
  if (tokens.pad) written["pad_token_id"] = *tokens.pad;
  return written.dump(2) + "\n";
}

const char* hf_title(Family family) {
  constexpr const char* titles[] = {"GPT-2", "BLOOM", "Llama", "Mistral", "Qwen2", "Qwen3"};
  return titles[static_cast<size_t>(family)];
}

}  // namespace zg::models

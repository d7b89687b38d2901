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

/// Reads a config.json of Hugging Face's. Each value has a default; errors name the key. null means
/// absent, except for ids(). FileError when the text is no JSON object or a value has another type.
class HFReader {
 public:
  HFReader(const std::string& text, const std::string& path);

  int64_t count(const char* key, int64_t absent) const;
  /// One value that may have several keys. Those that are present must be equal.
  int64_t count(std::initializer_list<const char*> keys, int64_t absent) const;
  double number(const char* key, double absent) const;
  bool flag(const char* key, bool absent) const;
  /// Token ids: one, several, or none for null.
  std::vector<int32_t> ids(const char* key, std::vector<int32_t> absent) const;
  /// A value of any type; null when absent.
  const nlohmann::json* find(const char* key) const;
  /// Unsupported unless the key is absent or has this value.
  void require(const char* key, const nlohmann::json& only) const;
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;  ///< Unsupported
  [[noreturn]] void fail(const std::string& what) const;

 private:
  [[noreturn]] void fail(const char* key, const std::string& expected,
                         const nlohmann::json& value) const;
  const std::string& path_;
  nlohmann::json root_;
};

HFReader::HFReader(const std::string& text, const std::string& path)
    : path_(path), root_(parse_json_object(text, path)) {}

int64_t HFReader::count(const char* key, int64_t absent) const {
  const json* value = find(key);
  if (!value) return absent;
  if (!value->is_number_unsigned() || value->get<uint64_t>() == 0 ||
      value->get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()})
    fail(key, "a count", *value);
  return value->get<int64_t>();
}

int64_t HFReader::count(std::initializer_list<const char*> keys, int64_t absent) const {
  const char* first = nullptr;
  for (const char* key : keys) {
    if (!find(key)) continue;
    const int64_t value = count(key, absent);
    if (first && value != absent)
      fail(key, fmt::format("{} as {} says", absent, first), *find(key));
    first = key;
    absent = value;
  }
  return absent;
}

double HFReader::number(const char* key, double absent) const {
  const json* value = find(key);
  if (!value) return absent;
  if (!value->is_number()) fail(key, "a number", *value);
  return value->get<double>();
}

bool HFReader::flag(const char* key, bool absent) const {
  const json* value = find(key);
  if (!value) return absent;
  if (!value->is_boolean()) fail(key, "true or false", *value);
  return value->get<bool>();
}

std::vector<int32_t> HFReader::ids(const char* key, std::vector<int32_t> absent) const {
  const auto found = root_.find(key);
  if (found == root_.end()) return absent;
  std::vector<int32_t> ids;
  const auto add = [&](const json& id) {
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() &&
         id.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}))
      fail(key, "the id of a token, a list of them or null", *found);
    if (id.is_number_unsigned()) ids.push_back(id.get<int32_t>());  // -1 stands for none
  };
  if (found->is_array())
    for (const json& id : *found) add(id);
  else if (!found->is_null())
    add(*found);
  return ids;
}

const json* HFReader::find(const char* key) const {
  const auto found = root_.find(key);
  return found == root_.end() || found->is_null() ? nullptr : &*found;
}

void HFReader::require(const char* key, const json& only) const {
  const json* value = find(key);
  if (value && *value != only) refuse(key, only.dump());
}

void HFReader::refuse(const char* key, const std::string& expected) const {
  throw Unsupported(fmt::format("{}: {} is {}; expected {}, which is what this version computes",
                                path_, key, brief(root_.at(key)), expected));
}

void HFReader::fail(const std::string& what) const { throw FileError(path_ + ": " + what); }

void HFReader::fail(const char* key, const std::string& expected, const json& value) const {
  fail(fmt::format("{}: expected {}, got {}", key, expected, brief(value)));
}

constexpr double hf_epsilon = 1e-5;  // epsilon of our layer_norm

/// The shortest decimal number for a float: 0.1f gives 0.1 and not 0.100000001.
double hf_number(float value) {
  char digits[32];
  double number = 0.0;
  std::from_chars(digits, std::to_chars(digits, std::end(digits), value).ptr, number);
  return number;
}

/// The special tokens of a config that are in the vocabulary.
SpecialTokens hf_tokens(const HFReader& reader, const SpecialTokens& absent, int64_t vocabulary) {
  const auto known = [&](const char* key, const std::vector<int32_t>& otherwise) {
    std::vector<int32_t> ids = reader.ids(key, otherwise);
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

void require_our_arithmetic(const HFReader& reader, int64_t width) {
  const json* activation = reader.find("activation_function");
  if (activation &&
      std::find(std::begin(tanh_gelus), std::end(tanh_gelus), *activation) == std::end(tanh_gelus))
    reader.refuse("activation_function", "\"gelu_new\" or another name of the tanh approximation");
  reader.require("layer_norm_epsilon", hf_epsilon);
  reader.require("n_inner", 4 * width);
  reader.require("scale_attn_weights", true);
  reader.require("scale_attn_by_inverse_layer_idx", false);
  reader.require("add_cross_attention", false);
  reader.require("pruned_heads", json::object());
  reader.require("quantization_config", nullptr);
}

HFModel hf_gpt2_config(const HFReader& reader) {
  GPTConfig config;
  config.width = reader.count({"n_embd", "hidden_size"}, 768);
  require_our_arithmetic(reader, config.width);
  config.layers = reader.count({"n_layer", "num_hidden_layers"}, 12);
  config.heads = reader.count({"n_head", "num_attention_heads"}, 12);
  config.vocabulary = reader.count("vocab_size", published_vocabulary);
  config.block_size = reader.count({"n_positions", "max_position_embeddings"}, 1024);
  config.tied = reader.flag("tie_word_embeddings", true);
  const double dropout = reader.number("resid_pdrop", 0.1);
  config.dropout = static_cast<float>(dropout);
  const bool one_for_all =
      reader.number("embd_pdrop", 0.1) == dropout && reader.number("attn_pdrop", 0.1) == dropout;
  return {.config = config,
          .tokens = hf_tokens(reader, {.bos = end_of_text, .pad = {}, .eos = {end_of_text}},
                              config.vocabulary),
          .dropouts = one_for_all ? "" : "resid_pdrop, embd_pdrop and attn_pdrop"};
}

/// Without tokens.
json hf_gpt2_json(const GPTConfig& config) {
  if (config.position != Position::learned)
    throw Unsupported(
        "export: position is alibi; expected learned: transformers' GPT-2 has no other");
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
          {"n_inner", nullptr},
          {"layer_norm_epsilon", hf_epsilon},
          {"resid_pdrop", dropout},
          {"embd_pdrop", dropout},
          {"attn_pdrop", dropout},
          {"initializer_range", 0.02},
          {"scale_attn_weights", true},
          {"tie_word_embeddings", config.tied},
          {"torch_dtype", "float32"},
          {"use_cache", true}};
}

HFModel hf_bloom_config(const HFReader& reader) {
  GPTConfig config = bloom_family;
  // Published files have the second names; transformers writes the first.
  config.width = reader.count({"hidden_size", "n_embed"}, 64);
  config.layers = reader.count({"n_layer", "num_hidden_layers"}, 2);
  config.heads = reader.count({"n_head", "num_attention_heads"}, 8);
  config.vocabulary = reader.count("vocab_size", bloom_vocabulary);
  config.block_size = reader.count("seq_length", bloom_sequence);
  config.tied = reader.flag("tie_word_embeddings", true);
  // slow_but_exact and pretraining_tp only say in which order transformers adds.
  reader.require("layer_norm_epsilon", hf_epsilon);
  reader.require("apply_residual_connection_post_layernorm", false);
  reader.require("n_inner", 4 * config.width);
  reader.require("pruned_heads", json::object());
  reader.require("quantization_config", nullptr);
  const double dropout = reader.number("hidden_dropout", 0.0);
  config.dropout = static_cast<float>(dropout);
  const bool one_for_all = reader.number("attention_dropout", 0.0) == dropout;
  return {.config = config,
          .tokens = hf_tokens(reader, {.bos = 1, .pad = {}, .eos = {2}}, config.vocabulary),
          .dropouts = one_for_all ? "" : "hidden_dropout and attention_dropout"};
}

/// Without tokens.
json hf_bloom_json(const GPTConfig& config) {
  if (config.position != Position::alibi)
    throw Unsupported(
        "export: position is learned; expected alibi: transformers' BLOOM has no other");
  if (!config.embedding_norm)
    throw Unsupported(
        "export: embedding_norm is false; expected true: transformers' BLOOM has one");
  return {{"architectures", {"BloomForCausalLM"}},
          {"model_type", "bloom"},
          {"vocab_size", config.vocabulary},
          {"hidden_size", config.width},
          {"n_layer", config.layers},
          {"n_head", config.heads},
          {"seq_length", config.block_size},
          {"layer_norm_epsilon", hf_epsilon},
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

HFModel read(const HFReader& reader) {
  const json* type = reader.find("model_type");
  if (!type || *type == "gpt2") return hf_gpt2_config(reader);
  if (*type == "bloom") return hf_bloom_config(reader);
  reader.refuse("model_type", "\"gpt2\" or \"bloom\"");
}

json id_of(std::optional<int32_t> token) { return token ? json(*token) : json(nullptr); }

// Like transformers: one id as a number, several as a list.
json ids_of(const std::vector<int32_t>& tokens) {
  return tokens.empty() ? json(nullptr) : tokens.size() == 1 ? json(tokens.front()) : json(tokens);
}

}  // namespace

HFModel hf_config(const std::string& text, const std::string& path) {
  const HFReader reader(text, path);
  const HFModel theirs = read(reader);
  try {
    validate(theirs.config);
  } catch (const ConfigError& error) {
    reader.fail(error.what());
  }
  return theirs;
}

void read_hf_generation(const std::string& text, const std::string& path, HFModel& model) {
  model.tokens = hf_tokens(HFReader(text, path), model.tokens, model.config.vocabulary);
}

std::string hf_json(const GPTConfig& config, const SpecialTokens& tokens) {
  const bool bloom = config.family == Family::bloom;
  json written = bloom ? hf_bloom_json(config) : hf_gpt2_json(config);
  written["bos_token_id"] = id_of(tokens.bos);
  written["eos_token_id"] = ids_of(tokens.eos);
  written["pad_token_id"] = id_of(tokens.pad);
  return written.dump(2) + "\n";
}

std::string hf_generation_json(const SpecialTokens& tokens) {
  json written = {{"_from_model_config", true}};
  if (tokens.bos) written["bos_token_id"] = *tokens.bos;
  if (!tokens.eos.empty()) written["eos_token_id"] = ids_of(tokens.eos);
  if (tokens.pad) written["pad_token_id"] = *tokens.pad;
  return written.dump(2) + "\n";
}

const char* hf_title(Family family) { return family == Family::bloom ? "BLOOM" : "GPT-2"; }

}  // namespace zg::models

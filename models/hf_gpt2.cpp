#include "models/hf_gpt2.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/json_text.h"
#include "runtime/error.h"

namespace zg::models {
namespace {

using nlohmann::json;

constexpr double epsilon = 1e-5;  // of our layer_norm
constexpr int64_t end_of_text_vocabulary = 50257;

/// A config.json whose values are read with a default and refused by key.
class Reader {
 public:
  Reader(const std::string& text, const std::string& path)
      : path_(path), root_(parse_json_object(text, path)) {}

  int64_t count(const char* key, int64_t absent) const {
    const json* value = find(key);
    if (!value) return absent;
    if (!value->is_number_unsigned() || value->get<uint64_t>() == 0 ||
        value->get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()})
      fail(key, "a count", *value);
    return value->get<int64_t>();
  }
  double number(const char* key, double absent) const {
    const json* value = find(key);
    if (!value) return absent;
    if (!value->is_number()) fail(key, "a number", *value);
    return value->get<double>();
  }
  bool flag(const char* key, bool absent) const {
    const json* value = find(key);
    if (!value) return absent;
    if (!value->is_boolean()) fail(key, "true or false", *value);
    return value->get<bool>();
  }
  /// Unsupported unless the key is absent, null or this.
  void require(const char* key, const json& only) const {
    const json* value = find(key);
    if (value && *value != only)
      throw Unsupported(path_ + ": " + key + " is " + brief(*value) + "; expected " + only.dump() +
                        ", which is what this version computes");
  }
  [[noreturn]] void fail(const std::string& what) const { throw FileError(path_ + ": " + what); }

 private:
  const json* find(const char* key) const {
    const auto found = root_.find(key);
    return found == root_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void fail(const char* key, const char* expected, const json& value) const {
    fail(std::string(key) + ": expected " + expected + ", got " + brief(value));
  }

  const std::string& path_;
  json root_;
};

void require_our_arithmetic(const Reader& reader, int64_t width) {
  reader.require("model_type", "gpt2");
  reader.require("activation_function", "gelu_new");
  reader.require("layer_norm_epsilon", epsilon);
  reader.require("n_inner", 4 * width);
  reader.require("scale_attn_weights", true);
  reader.require("scale_attn_by_inverse_layer_idx", false);
  reader.require("add_cross_attention", false);
  reader.require("quantization_config", nullptr);
}

}  // namespace

HFGPT2 hf_gpt2_config(const std::string& text, const std::string& path) {
  const Reader reader(text, path);
  HFGPT2 theirs;
  GPTConfig& config = theirs.config;
  config.width = reader.count("n_embd", 768);
  require_our_arithmetic(reader, config.width);
  config.layers = reader.count("n_layer", 12);
  config.heads = reader.count("n_head", 12);
  config.vocabulary = reader.count("vocab_size", end_of_text_vocabulary);
  config.block_size = reader.count("n_positions", 1024);
  config.tied = reader.flag("tie_word_embeddings", true);
  const double dropout = reader.number("resid_pdrop", 0.1);
  config.dropout = static_cast<float>(dropout);
  theirs.one_dropout =
      reader.number("embd_pdrop", 0.1) == dropout && reader.number("attn_pdrop", 0.1) == dropout;
  try {
    validate(config);
  } catch (const ConfigError& error) {
    reader.fail(error.what());
  }
  return theirs;
}

std::string hf_gpt2_json(const GPTConfig& config) {
  const json token = config.vocabulary == end_of_text_vocabulary
                         ? json(end_of_text_vocabulary - 1)  // <|endoftext|>
                         : json(nullptr);
  // 0.1f as people write it, not as a double holds it.
  char digits[32];
  double dropout = 0.0;
  std::from_chars(digits, std::to_chars(digits, std::end(digits), config.dropout).ptr, dropout);
  return json{{"architectures", {"GPT2LMHeadModel"}},
              {"model_type", "gpt2"},
              {"activation_function", "gelu_new"},
              {"vocab_size", config.vocabulary},
              {"n_positions", config.block_size},
              {"n_ctx", config.block_size},
              {"n_embd", config.width},
              {"n_layer", config.layers},
              {"n_head", config.heads},
              {"n_inner", nullptr},
              {"layer_norm_epsilon", epsilon},
              {"resid_pdrop", dropout},
              {"embd_pdrop", dropout},
              {"attn_pdrop", dropout},
              {"initializer_range", 0.02},
              {"scale_attn_weights", true},
              {"tie_word_embeddings", config.tied},
              {"bos_token_id", token},
              {"eos_token_id", token},
              {"torch_dtype", "float32"},
              {"use_cache", true}}
             .dump(2) +
         "\n";
}

}  // namespace zg::models

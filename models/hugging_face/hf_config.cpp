#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "zerograd/models/gpt/family.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hf_keys.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

// config.json of decoders: the key map of each family, and its reader and writer.
namespace zg::models {
namespace {

using nlohmann::json;
/// The key map of a family's config.json, with transformers' values for keys that a file lacks.
struct DecoderMap : HFMap<GPTConfig> {
  SpecialTokens tokens = {};
  std::vector<std::string> dropouts = {};  ///< keys of GPTConfig::dropout, which must be equal
  double dropout = 0.0;
};

DecoderMap gpt2_map() {
  constexpr int32_t end_of_text = 50256;  // <|endoftext|>
  return {{{hf_row("width", &GPTConfig::width, {"n_embd", "hidden_size"}, 768),
            {nullptr, "activation_function",
             [](const JsonNode& theirs, GPTConfig&) {
               const JsonNode activation = theirs.at("activation_function");
               if (!activation.value.is_null() && !is_tanh_gelu(activation))
                 activation.refuse("\"gelu_new\" or another name of the tanh approximation");
             },
             [](json& written, const GPTConfig& config) {
               written["activation_function"] = "gelu_new";
               written["n_ctx"] = config.block_size;
             }},
            hf_row("layers", &GPTConfig::layers, {"n_layer", "num_hidden_layers"}, 12),
            hf_row("heads", &GPTConfig::heads, {"n_head", "num_attention_heads"}, 12),
            hf_row("vocabulary", &GPTConfig::vocabulary, {"vocab_size"}, 50257),
            hf_row("block_size", &GPTConfig::block_size, {"n_positions", "max_position_embeddings"},
                   1024),
            {"hidden", "n_inner",
             [](const JsonNode& theirs, GPTConfig& config) {
               config.hidden = theirs.at("n_inner").count(0);
               if (config.hidden == 4 * config.width) config.hidden = 0;  // the default
             },
             [](json& written, const GPTConfig& config) {
               written["n_inner"] = config.hidden > 0 ? json(config.hidden) : json(nullptr);
             }},
            hf_row("norm_epsilon", &GPTConfig::norm_epsilon, {"layer_norm_epsilon"}, 1e-5f),
            hf_row(nullptr, &GPTConfig::tied, {"tie_word_embeddings"}, true)},
           {{"scale_attn_weights", true}},
           {{"scale_attn_by_inverse_layer_idx", false}, {"add_cross_attention", false}}},
          {.bos = end_of_text, .pad = {}, .eos = {end_of_text}},
          {"resid_pdrop", "embd_pdrop", "attn_pdrop"},
          0.1};
}

/// In a row with two keys, published files have the second, and transformers writes the first.
DecoderMap bloom_map() {
  return {{{hf_row("width", &GPTConfig::width, {"hidden_size", "n_embed"}, 64),
            hf_row("layers", &GPTConfig::layers, {"n_layer", "num_hidden_layers"}, 2),
            hf_row("heads", &GPTConfig::heads, {"n_head", "num_attention_heads"}, 8),
            hf_row("vocabulary", &GPTConfig::vocabulary, {"vocab_size"}, bloom_vocabulary),
            hf_row("block_size", &GPTConfig::block_size, {"seq_length"}, bloom_sequence),
            hf_row(nullptr, &GPTConfig::tied, {"tie_word_embeddings"}, true),
            {nullptr, "pretraining_tp",
             [](const JsonNode& theirs, GPTConfig& config) {
               // With several parts and slow_but_exact transformers omits the biases.
               if (theirs.at("pretraining_tp").count(1) > 1)
                 theirs.at("slow_but_exact").require(false);
               theirs.at("n_inner").require(4 * config.width);
             },
             [](json& written, const GPTConfig&) {
               written["pretraining_tp"] = 1;
               written["slow_but_exact"] = false;
             }},
            hf_row("norm_epsilon", &GPTConfig::norm_epsilon, {"layer_norm_epsilon"}, 1e-5f)},
           {{"apply_residual_connection_post_layernorm", false}}},
          {.bos = 1, .pad = {}, .eos = {2}},
          {"hidden_dropout", "attention_dropout"}};
}

DecoderKey hf_positions(int64_t absent) {
  return {"positions", "max_position_embeddings",
          [absent](const JsonNode& theirs, GPTConfig& config) {
            config.positions = theirs.at("max_position_embeddings").count(absent);
            config.block_size = std::min(config.positions, rope_sequence);
          },
          [](json& written, const GPTConfig& config) {
            written["max_position_embeddings"] =
                config.positions > 0 ? config.positions : config.block_size;
          }};
}

int64_t query_scalar_of(const GPTConfig& config) {
  return config.query_scalar > 0 ? config.query_scalar : head_size_of(config);
}

/// transformers' values for keys that a config.json of Llama's families lacks.
struct LlamaAbsent {
  SpecialTokens tokens = {};
  int64_t vocabulary, hidden, kv_heads, positions;  // kv_heads 0: as many as heads
  int64_t head_size = 0, width = 4096, layers = 32, heads = 32;
  float epsilon = 1e-6f;
  bool tied = false;
};

/// The key map of one of Llama's families. `own` has its rows of rotary positions and window.
DecoderMap llama_map(Family family, const LlamaAbsent& absent, std::vector<DecoderKey> own) {
  const int64_t kv_heads = absent.kv_heads;
  DecoderMap map{
      {{hf_row("width", &GPTConfig::width, {"hidden_size"}, absent.width),
        hf_row("layers", &GPTConfig::layers, {"num_hidden_layers"}, absent.layers),
        hf_row("heads", &GPTConfig::heads, {"num_attention_heads"}, absent.heads),
        hf_row("kv_heads", &GPTConfig::kv_heads, {"num_key_value_heads"}, 0, kv_heads_of),
        hf_row("head_size", &GPTConfig::head_size, {"head_dim"}, absent.head_size, head_size_of),
        hf_row("hidden", &GPTConfig::hidden, {"intermediate_size"}, absent.hidden, hidden_of),
        hf_row("vocabulary", &GPTConfig::vocabulary, {"vocab_size"}, absent.vocabulary),
        hf_positions(absent.positions),
        {"block_size", "max_position_embeddings",
         [kv_heads](const JsonNode& theirs, GPTConfig& config) {
           // An absent key has the family's default; null stands for the number of heads.
           if (!theirs.value.contains("num_key_value_heads")) config.kv_heads = kv_heads;
           config.kv_heads = kv_heads_of(config);
           if (config.head_size * config.heads == config.width) config.head_size = 0;
         }},
        hf_row("norm_epsilon", &GPTConfig::norm_epsilon, {"rms_norm_eps"}, absent.epsilon),
        hf_row(nullptr, &GPTConfig::tied, {"tie_word_embeddings"}, absent.tied)},
       {{"attention_dropout", 0.0}},
       {{"mlp_bias", false}, {"attention_bias", row_of(family).defaults.qkv_bias}}},
      absent.tokens};
  map.fixed[family == Family::gemma3 ? "hidden_activation" : "hidden_act"] =
      family == Family::gemma3 ? "gelu_pytorch_tanh" : "silu";
  map.keys.insert(map.keys.end(), own.begin(), own.end());
  return map;
}

/// Reads attention_bias as a setting. The other families require one value of it.
DecoderMap with_bias(DecoderMap map) {
  map.required.erase("attention_bias");
  map.fixed["mlp_bias"] = false;
  map.keys.push_back({nullptr, "attention_bias",
                      [](const JsonNode& theirs, GPTConfig& config) {
                        config.qkv_bias = config.bias = theirs.at("attention_bias").flag(false);
                      },
                      [](json& written, const GPTConfig& config) {
                        written["attention_bias"] = config.qkv_bias;
                      }});
  return map;
}

DecoderMap gemma3_map() {
  DecoderMap map = llama_map(
      Family::gemma3,
      {.tokens = {.bos = 2, .pad = 0, .eos = {1}},
       .vocabulary = 262208,
       .hidden = 9216,
       .kv_heads = 4,
       .positions = 131072,
       .head_size = 256,
       .width = 2304,
       .layers = 26,
       .heads = 8,
       .tied = true},
      {hf_rope({.theta_absent = 1e6, .local_theta = "rope_local_base_freq"}), hf_window_period(),
       hf_row("query_scalar", &GPTConfig::query_scalar, {"query_pre_attn_scalar"}, 256,
              query_scalar_of)});
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    map.fixed[key] = nullptr;
  map.fixed["use_bidirectional_attention"] = false;
  return map;
}

DecoderMap phi3_map() {
  DecoderMap map = llama_map(
      Family::phi3,
      {.tokens = {.bos = 1, .pad = 32000, .eos = {32000}},
       .vocabulary = 32064,
       .hidden = 8192,
       .kv_heads = 0,
       .positions = 4096,
       .width = 3072,
       .epsilon = 1e-5f},
      {hf_rope({.rotated_share = 1.0, .has_longrope = true}), hf_window(WindowKeys::one)});
  for (const char* key : {"resid_pdrop", "embd_pdrop"}) map.fixed[key] = 0.0;
  return map;
}

DecoderMap gpt_neox_map() {
  return {{{hf_row("width", &GPTConfig::width, {"hidden_size"}, 6144),
            hf_row("layers", &GPTConfig::layers, {"num_hidden_layers"}, 44),
            hf_row("heads", &GPTConfig::heads, {"num_attention_heads"}, 64),
            hf_row("hidden", &GPTConfig::hidden, {"intermediate_size"}, 24576, hidden_of),
            hf_row("vocabulary", &GPTConfig::vocabulary, {"vocab_size"}, 50432), hf_positions(2048),
            hf_activation<GPTConfig>("hidden_act", nn::MlpKind::gelu_erf),
            hf_row("norm_epsilon", &GPTConfig::norm_epsilon, {"layer_norm_eps"}, 1e-5f),
            hf_row(nullptr, &GPTConfig::tied, {"tie_word_embeddings"}, false),
            hf_row(nullptr, &GPTConfig::parallel_residual, {"use_parallel_residual"}, true),
            hf_rope({"rotary_emb_base", "rotary_pct", 0.25})},
           {{"attention_bias", true}}},
          {.bos = 0, .pad = {}, .eos = {2}},
          {"hidden_dropout", "attention_dropout"}};
}

const DecoderMap& map_of(Family family) {
  static const DecoderMap all[] = {
      // In the order of Family.
      gpt2_map(),
      bloom_map(),
      with_bias(llama_map(Family::llama, {{.bos = 1, .pad = {}, .eos = {2}}, 32000, 11008, 0, 2048},
                          {hf_rope(), hf_window(WindowKeys::none)})),
      llama_map(Family::mistral, {{.bos = 1, .pad = {}, .eos = {2}}, 32000, 14336, 8, 131072},
                {hf_rope(), hf_window(WindowKeys::one, 4096)}),
      llama_map(Family::qwen2, {{}, 151936, 22016, 32, 32768},
                {hf_rope(), hf_window(WindowKeys::qwen)}),
      llama_map(Family::qwen3, {{}, 151936, 22016, 32, 32768, 128},
                {hf_rope(), hf_window(WindowKeys::qwen)}),
      gpt_neox_map(),
      llama_map(Family::olmo2,
                {.tokens = {.bos = {}, .pad = 1, .eos = {50279}},
                 .vocabulary = 50304,
                 .hidden = 11008,
                 .kv_heads = 0,
                 .positions = 2048,
                 .epsilon = 1e-5f},
                {hf_rope()}),
      gemma3_map(),
      phi3_map(),
  };
  return all[static_cast<size_t>(family)];
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

/// Sets the dropout from the first key. If the keys have different values, `dropouts` lists them.
void read_dropouts(const DecoderMap& map, const JsonNode& theirs, HFModel& model) {
  double first = -1.0;
  for (const std::string& key : map.dropouts) {
    const double share = theirs.at(key).number(map.dropout);
    if (!(share >= 0.0 && share <= 1.0)) theirs.at(key).fail("a share from 0 to 1");
    if (first < 0.0) model.config.dropout = static_cast<float>(first = share);
    if (share != first) model.dropouts = join(map.dropouts, ", ", " and ");
  }
}

/// The family that model_type names. Without one it is GPT-2.
Family family_of(const JsonNode& theirs) {
  const JsonNode type = theirs.at("model_type");
  const JsonNode classes = theirs.at("architectures");
  if (type.value.is_null() && classes.value.is_array() && !classes.value.empty() &&
      !brief(classes.value[0]).starts_with("\"GPT2"))
    raise<FileError>("{} is absent; expected the model_type of {}", type.name,
                     brief(classes.value[0]));
  if (type.value.is_null()) return Family::gpt;
  for (const Family family : all_families)
    if (type.value == row_of(family).model_type) return family;
  const std::string names = list_families(&FamilyRow::model_type);
  if (type.value == "blenderbot" || type.value == "bart")
    type.refuse(
        fmt::format("a decoder ({}): Seq2SeqFolder (models/hugging_face/hf_seq2seq.h) "
                    "reads encoder-decoders",
                    names));
  type.refuse(names);
}

HFModel read(const JsonNode& theirs) {
  theirs.at("is_causal").require(true);
  const Family family = family_of(theirs);
  const DecoderMap& map = map_of(family);
  HFModel model{.config = GPTConfig::of(family), .tokens = {}};
  map.read(theirs, model.config);
  read_dropouts(map, theirs, model);
  model.tokens = hf_tokens(theirs, map.tokens, model.config.vocabulary);
  return model;
}

/// A form of the config that is equal for two models that compute the same. Fields that are 0 for a
/// default get the default's value. Fields that concern only training or lengths get a fixed value.
GPTConfig model_of(GPTConfig config) {
  config.kv_heads = kv_heads_of(config);
  config.head_size = head_size_of(config);
  config.hidden = hidden_of(config);
  config.query_scalar = query_scalar_of(config);
  if (config.window_period > config.layers) config.window_period = 0;
  if (config.window == 0) {
    config.window_period = 0;
    config.local_theta = 0.0;
  }
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
  const auto shown = [](const auto& value) {
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(value)>>)
      return fmt::format("{}", name_of(value));
    else
      return fmt::format("{}", value);
  };
  const auto require = [&](const char* field, auto GPTConfig::*member) {
    if (ours.*member != theirs.*member)
      raise<Unsupported>("export: {} is {}; expected {}: the {} of transformers has no other",
                         field, shown(ours.*member), shown(theirs.*member),
                         hf_title(config.family));
  };
  require("position", &GPTConfig::position);
  require("embedding_norm", &GPTConfig::embedding_norm);
  require("head_size", &GPTConfig::head_size);
  require("hidden", &GPTConfig::hidden);
  require("window", &GPTConfig::window);
  require("rotated_share", &GPTConfig::rotated_share);
  require("parallel_residual", &GPTConfig::parallel_residual);
  require("window_period", &GPTConfig::window_period);
  require("local_theta", &GPTConfig::local_theta);
  require("norm", &GPTConfig::norm);
  require("mlp", &GPTConfig::mlp);
  require("bias", &GPTConfig::bias);
  require("qkv_bias", &GPTConfig::qkv_bias);
  require("query_key_norm", &GPTConfig::query_key_norm);
  if (ours != theirs)
    raise<Unsupported>(
        "export: rope has options that the {} of transformers does not use; expected "
        "only those of its scaling {}",
        hf_title(config.family), name_of(ours.rope.scaling));
}

// The message of validate() with the file's key in place of GPTConfig's field.
std::string with_key(const std::string& message, Family family) {
  for (const DecoderKey& row : map_of(family).keys)
    for (const char* prefix : {"gpt: ", ""})
      if (const std::string field = fmt::format("{}{}: ", prefix, row.field ? row.field : "");
          row.field && message.starts_with(field))
        return fmt::format("{}: {}", row.key, message.substr(field.size()));
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
  const FamilyRow& family = row_of(config.family);
  const DecoderMap& map = map_of(config.family);
  json written = map.write(family.hf_class, family.model_type, config);
  written["initializer_range"] = 0.02;
  for (const std::string& key : map.dropouts) written[key] = hf_number(config.dropout);
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

const char* hf_title(Family family) { return row_of(family).title; }

}  // namespace zg::models

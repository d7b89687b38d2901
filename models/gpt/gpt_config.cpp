#include "zerograd/models/gpt/gpt_config.h"

#include <iterator>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

struct Preset {
  const char* name;
  int64_t layers, heads, width;
  int64_t vocabulary = 0, positions = 0;  // as published; 0: minGPT's own, for any data
};
// Radford et al. 2018 and 2019; Rae et al. 2021, arXiv:2112.11446, section 2 (gopher).
constexpr Preset gpt_presets[] = {
    {"openai-gpt", 12, 12, 768, 40478, 512},
    {"gpt2", 12, 12, 768, 50257, 1024},
    {"gpt2-medium", 24, 16, 1024, 50257, 1024},
    {"gpt2-large", 36, 20, 1280, 50257, 1024},
    {"gpt2-xl", 48, 25, 1600, 50257, 1024},
    {"gopher-44m", 8, 16, 512, 32000, 2048},
    {"gpt-mini", 6, 6, 192},
    {"gpt-micro", 4, 4, 128},
    {"gpt-nano", 3, 3, 48},
};

// Megatron-LM pads GPT-2's 50257 to a multiple of 128.
constexpr int64_t padded_gpt2_vocabulary = 50304;

constexpr GPTConfig sized(int64_t layers, int64_t heads, int64_t width) {
  GPTConfig config = bloom_family;
  config.layers = layers;
  config.heads = heads;
  config.width = width;
  config.vocabulary = bloom_vocabulary;
  config.block_size = bloom_sequence;
  return config;
}

/// tr1-13B of BigScience. The tutorial's script calls it BLOOM.
constexpr GPTConfig tutorial() {
  GPTConfig config = sized(40, 32, 5120);
  config.vocabulary = padded_gpt2_vocabulary;
  config.position = Position::learned;
  config.embedding_norm = false;
  return config;
}

struct NamedConfig {
  const char* name;
  GPTConfig config;
};
/// "bloom-13b" is the model of Habana's BLOOM tutorial: BLOOM's layout with learned positions, no
/// norm of the embedding and GPT-2's vocabulary.
constexpr NamedConfig bloom_presets[] = {
    {"bloom-560m", sized(24, 16, 1024)},   {"bloom-1b1", sized(24, 16, 1536)},
    {"bloom-1b7", sized(24, 16, 2048)},    {"bloom-3b", sized(30, 32, 2560)},
    {"bloom-7b1", sized(30, 32, 4096)},    {"bloom-13b", tutorial()},
    {"bloom-176b", sized(70, 112, 14336)},
};

const std::vector<NamedConfig>& presets() {
  static const std::vector<NamedConfig> all = [] {
    std::vector<NamedConfig> both;
    for (const Preset& gpt : gpt_presets)
      both.push_back({gpt.name, {.layers = gpt.layers, .heads = gpt.heads, .width = gpt.width}});
    both.insert(both.end(), std::begin(bloom_presets), std::end(bloom_presets));
    return both;
  }();
  return all;
}

constexpr DecoderNames gpt_names = {
    .tokens = "transformer.wte",
    .positions = "transformer.wpe",
    .embedding_norm = nullptr,
    .norm_1 = ".ln_1",
    .qkv = ".attn.c_attn",
    .attention_out = ".attn.c_proj",
    .norm_2 = ".ln_2",
    .mlp_in = ".mlp.c_fc",
    .mlp_out = ".mlp.c_proj",
    .norm_f = "transformer.ln_f",
};

constexpr DecoderNames bloom_names = {
    .tokens = "transformer.word_embeddings",
    .positions = "transformer.position_embeddings",
    .embedding_norm = "transformer.word_embeddings_layernorm",
    .norm_1 = ".input_layernorm",
    .qkv = ".self_attention.query_key_value",
    .attention_out = ".self_attention.dense",
    .norm_2 = ".post_attention_layernorm",
    .mlp_in = ".mlp.dense_h_to_4h",
    .mlp_out = ".mlp.dense_4h_to_h",
    .norm_f = "transformer.ln_f",
};

// With these limits every parameter count is below 2^63.
constexpr int64_t max_layers = 1 << 16, max_width = 1 << 20, max_rows = INT32_MAX;
constexpr int64_t largest_head = 1024;  // limit of the attention kernels

void check_extent(const char* field, int64_t value, int64_t maximum) {
  if (value < 1 || value > maximum)
    throw ConfigError(fmt::format("gpt: {}: expected 1 to {}, got {}", field, maximum, value));
}

}  // namespace

const char* name_of(Family family) { return family == Family::bloom ? "bloom" : "gpt"; }
const char* name_of(Position position) { return position == Position::alibi ? "alibi" : "learned"; }

GPTConfig GPTConfig::preset(const std::string& model_type) {
  std::string names;
  for (const NamedConfig& preset : presets()) {
    if (model_type == preset.name) return preset.config;
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  }
  throw ConfigError(
      fmt::format("gpt: model type: expected one of {}, got '{}'", names, model_type));
}

GPTConfig GPTConfig::published(const std::string& model_type) {
  GPTConfig config = preset(model_type);
  for (const Preset& gpt : gpt_presets)
    if (model_type == gpt.name) {
      config.vocabulary = gpt.vocabulary;
      config.block_size = gpt.positions;
    }
  return config;
}

GPTConfig GPTConfig::of(Family family) {
  return family == Family::bloom ? bloom_family : GPTConfig();
}

const std::vector<std::string>& GPTConfig::preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const NamedConfig& preset : presets()) all.emplace_back(preset.name);
    return all;
  }();
  return names;
}

double layer_flops(const GPTConfig& config) {
  const double C = static_cast<double>(config.width), T = static_cast<double>(config.block_size);
  return 2.0 * (12.0 * C * C + T * C);
}

double head_flops(const GPTConfig& config) {
  return 2.0 * static_cast<double>(config.vocabulary) * static_cast<double>(config.width);
}

double matmul_flops_per_token(const GPTConfig& config) {
  return 3.0 * (static_cast<double>(config.layers) * layer_flops(config) + head_flops(config));
}

void validate(const GPTConfig& config) {
  check_extent("layers", config.layers, max_layers);
  check_extent("width", config.width, max_width);
  check_extent("heads", config.heads, config.width);
  check_extent("vocabulary", config.vocabulary, max_rows);
  check_extent("block_size", config.block_size, max_rows);
  if (config.width % config.heads != 0)
    throw ConfigError(fmt::format("gpt: heads: expected a divisor of the width {}, got {}",
                                  config.width, config.heads));
  if (config.width / config.heads > largest_head)
    throw ConfigError(fmt::format(
        "gpt: heads: expected at least {} for a width of {} (a head size of at most {}), got {}",
        (config.width + largest_head - 1) / largest_head, config.width, largest_head,
        config.heads));
  if (!(config.dropout >= 0.0f && config.dropout < 1.0f))
    throw ConfigError(
        fmt::format("gpt: dropout: expected a probability in [0, 1), got {:f}", config.dropout));
  if (config.embedding_norm && config.family == Family::gpt)
    throw ConfigError(
        "gpt: embedding_norm: expected the family bloom, got gpt, which has no name "
        "for it");
}

std::string block_name(int64_t layer) { return fmt::format("transformer.h.{}", layer); }

const DecoderNames& names_of(Family family) {
  return family == Family::bloom ? bloom_names : gpt_names;
}

}  // namespace zg::models

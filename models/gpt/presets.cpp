#include "zerograd/models/gpt/bloom.h"
#include "zerograd/runtime/error.h"

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

// Together they keep every parameter count below 2^63.
constexpr int64_t most_layers = 1 << 16, widest = 1 << 20, most_rows = INT32_MAX;
constexpr int64_t largest_head = 1024;  // limit of the attention kernels

void check_extent(const char* field, int64_t value, int64_t most) {
  if (value < 1 || value > most)
    throw ConfigError(std::string("gpt: ") + field + ": expected 1 to " + std::to_string(most) +
                      ", got " + std::to_string(value));
}

const std::vector<NamedConfig>& presets() {
  static const std::vector<NamedConfig> all = [] {
    std::vector<NamedConfig> both;
    for (const Preset& gpt : gpt_presets)
      both.push_back({gpt.name, {.layers = gpt.layers, .heads = gpt.heads, .width = gpt.width}});
    both.insert(both.end(), bloom_presets().begin(), bloom_presets().end());
    return both;
  }();
  return all;
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
  throw ConfigError("gpt: model type: expected one of " + names + ", got '" + model_type + "'");
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

double matmul_flops_per_token(const GPTConfig& config) {
  const double C = static_cast<double>(config.width), T = static_cast<double>(config.block_size);
  const double per_layer = 12.0 * C * C + T * C;
  return 6.0 * (static_cast<double>(config.layers) * per_layer +
                static_cast<double>(config.vocabulary) * C);
}

void validate(const GPTConfig& config) {
  check_extent("layers", config.layers, most_layers);
  check_extent("width", config.width, widest);
  check_extent("heads", config.heads, config.width);
  check_extent("vocabulary", config.vocabulary, most_rows);
  check_extent("block_size", config.block_size, most_rows);
  if (config.width % config.heads != 0)
    throw ConfigError("gpt: heads: expected a divisor of the width " +
                      std::to_string(config.width) + ", got " + std::to_string(config.heads));
  if (config.width / config.heads > largest_head)
    throw ConfigError("gpt: heads: expected at least " +
                      std::to_string((config.width + largest_head - 1) / largest_head) +
                      " for a width of " + std::to_string(config.width) +
                      " (a head size of at most " + std::to_string(largest_head) + "), got " +
                      std::to_string(config.heads));
  if (!(config.dropout >= 0.0f && config.dropout < 1.0f))
    throw ConfigError("gpt: dropout: expected a probability in [0, 1), got " +
                      std::to_string(config.dropout));
  if (config.embedding_norm && config.family == Family::gpt)
    throw ConfigError(
        "gpt: embedding_norm: expected the family bloom, got gpt, which has no name "
        "for it");
}

}  // namespace zg::models

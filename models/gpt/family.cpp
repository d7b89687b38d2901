#include "zerograd/models/gpt/family.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

constexpr DecoderNames gpt_names = {
    .tokens = "transformer.wte",
    .positions = "transformer.wpe",
    .blocks = "transformer.h.",
    .norm_1 = "ln_1",
    .norm_2 = "ln_2",
    .attention = {.qkv = "attn.c_attn", .out = "attn.c_proj"},
    .mlp = {.gate = nullptr, .up = "mlp.c_fc", .down = "mlp.c_proj"},
    .norm_f = "transformer.ln_f",
    .conv1d = true};

constexpr DecoderNames bloom_names = {
    .tokens = "transformer.word_embeddings",
    .positions = "transformer.position_embeddings",
    .embedding_norm = "transformer.word_embeddings_layernorm",
    .blocks = "transformer.h.",
    .norm_1 = "input_layernorm",
    .norm_2 = "post_attention_layernorm",
    .attention = {.qkv = "self_attention.query_key_value", .out = "self_attention.dense"},
    .mlp = {.gate = nullptr, .up = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h"},
    .norm_f = "transformer.ln_f",
    .qkv_order = QKVOrder::by_head};

constexpr DecoderNames llama_names = {
    .tokens = "model.embed_tokens",
    .blocks = "model.layers.",
    .norm_1 = "input_layernorm",
    .norm_2 = "post_attention_layernorm",
    .attention = {.q = "self_attn.q_proj",
                  .k = "self_attn.k_proj",
                  .v = "self_attn.v_proj",
                  .qkv = nullptr,
                  .out = "self_attn.o_proj",
                  .q_norm = "self_attn.q_norm",
                  .k_norm = "self_attn.k_norm"},
    .mlp = {.gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"},
    .norm_f = "model.norm"};

constexpr DecoderNames gpt_neox_names = {
    .tokens = "gpt_neox.embed_in",
    .blocks = "gpt_neox.layers.",
    .norm_1 = "input_layernorm",
    .norm_2 = "post_attention_layernorm",
    .attention = {.qkv = "attention.query_key_value", .out = "attention.dense"},
    .mlp = {.gate = nullptr, .up = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h"},
    .norm_f = "gpt_neox.final_layer_norm",
    .head = "embed_out",
    .qkv_order = QKVOrder::by_head};

DecoderNames olmo2_names() {
  DecoderNames names = llama_names;
  names.norm_1 = names.norm_2 = nullptr;
  names.post_norm_1 = "post_attention_layernorm";
  names.post_norm_2 = "post_feedforward_layernorm";
  return names;
}

DecoderNames gemma3_names() {
  DecoderNames names = olmo2_names();
  names.norm_1 = "input_layernorm";
  names.norm_2 = "pre_feedforward_layernorm";
  return names;
}

DecoderNames phi3_names() {
  DecoderNames names = llama_names;
  names.attention.qkv = "self_attn.qkv_proj";
  names.mlp.gate_up = "mlp.gate_up_proj";
  return names;
}

const GPTConfig bloom_defaults = {
    .tied = true, .family = Family::bloom, .position = Position::alibi, .embedding_norm = true};

const GPTConfig gpt_neox_defaults = {.dropout = 0.0f,
                                     .family = Family::gpt_neox,
                                     .position = Position::rope,
                                     .mlp = nn::MlpKind::gelu_erf,
                                     .rotated_share = 0.25,
                                     .parallel_residual = true};

/// With Llama's blocks.
GPTConfig llama_defaults(GPTConfig config) {
  config.dropout = 0.0f;
  config.position = Position::rope;
  config.norm = nn::NormKind::rms;
  config.mlp = nn::MlpKind::gated_silu;
  config.bias = false;
  return config;
}

GPTConfig gemma3_defaults() {
  GPTConfig config = llama_defaults({.tied = true,
                                     .family = Family::gemma3,
                                     .head_size = 256,
                                     .norm_epsilon = 1e-6f,
                                     .qkv_bias = false,
                                     .query_key_norm = true,
                                     .window = 4096,
                                     .rope = {.theta = 1e6},
                                     .query_scalar = 256,
                                     .window_period = 6,
                                     .local_theta = 1e4});
  config.norm = nn::NormKind::rms_plus_one;
  config.mlp = nn::MlpKind::gated_gelu_tanh;
  return config;
}

FamilyRow llama_row(const char* name, const char* title, const char* hf_class, const char* gguf,
                    const GPTConfig& config) {
  return {name, title, name, hf_class, llama_names, llama_defaults(config), false, false, gguf};
}

/// In the order of Family.
const std::vector<FamilyRow>& rows() {
  static const std::vector<FamilyRow> all = {
      {"gpt", "GPT-2", "gpt2", "GPT2LMHeadModel", gpt_names, {}},
      {"bloom", "BLOOM", "bloom", "BloomForCausalLM", bloom_names, bloom_defaults},
      llama_row("llama", "Llama", "LlamaForCausalLM", "llama",
                {.family = Family::llama, .qkv_bias = false}),
      llama_row("mistral", "Mistral", "MistralForCausalLM", "llama",
                {.family = Family::mistral, .qkv_bias = false}),
      llama_row("qwen2", "Qwen2", "Qwen2ForCausalLM", "qwen2",
                {.family = Family::qwen2, .norm_epsilon = 1e-6f, .qkv_bias = true}),
      llama_row("qwen3", "Qwen3", "Qwen3ForCausalLM", "qwen3",
                {.family = Family::qwen3,
                 .norm_epsilon = 1e-6f,
                 .qkv_bias = false,
                 .query_key_norm = true}),
      {"gpt_neox", "GPT-NeoX", "gpt_neox", "GPTNeoXForCausalLM", gpt_neox_names, gpt_neox_defaults},
      {"olmo2", "OLMo 2", "olmo2", "Olmo2ForCausalLM", olmo2_names(),
       llama_defaults({.family = Family::olmo2, .qkv_bias = false, .query_key_norm = true}), true},
      {"gemma3", "Gemma 3", "gemma3_text", "Gemma3ForCausalLM", gemma3_names(), gemma3_defaults(),
       false, true},
      {"phi3", "Phi-3", "phi3", "Phi3ForCausalLM", phi3_names(),
       llama_defaults({.family = Family::phi3, .qkv_bias = false})},
  };
  return all;
}

}  // namespace

const FamilyRow& row_of(Family family) { return rows()[static_cast<size_t>(family)]; }

const char* name_of(Family family) { return row_of(family).name; }

std::string name_prefix(Family family) {
  const std::string tokens = names_of(family).tokens;
  return tokens.substr(0, tokens.find('.') + 1);
}

std::string block_name(Family family, int64_t layer) {
  return fmt::format("{}{}", names_of(family).blocks, layer);
}

std::string list_families(const char* FamilyRow::*member, bool (*listed)(const FamilyRow&)) {
  std::vector<std::string> names;
  for (const FamilyRow& row : rows())
    if (!listed || listed(row)) names.emplace_back(row.*member);
  return join(names, ", ", " or ");
}

namespace {

/// A published model's sizes. Those of the fields from kv_heads on are in the config.json files
/// that Hugging Face's hub has under these names.
struct Preset {
  const char* name;
  Family family;
  int64_t layers, heads, width;
  int64_t vocabulary = 0, positions = 0;  // 0: minGPT's own, for any data
  int64_t kv_heads = 0, hidden = 0;
  double theta = 1e4;
  bool tied = false;
  int64_t head_size = 0;
  double llama3_factor = 0.0;  // of RopeScaling::llama3; 0: plain rope
  int64_t window = 0;
};
// Radford et al. 2018 and 2019; Rae et al. 2021, arXiv:2112.11446, section 2 (gopher).
std::span<const Preset> presets() {
  using enum Family;
  static constexpr Preset all[] = {
      {"openai-gpt", gpt, 12, 12, 768, 40478, 512},
      {"gpt2", gpt, 12, 12, 768, 50257, 1024},
      {"gpt2-medium", gpt, 24, 16, 1024, 50257, 1024},
      {"gpt2-large", gpt, 36, 20, 1280, 50257, 1024},
      {"gpt2-xl", gpt, 48, 25, 1600, 50257, 1024},
      {"gopher-44m", gpt, 8, 16, 512, 32000, 2048},
      {"gpt-mini", gpt, 6, 6, 192},
      {"gpt-micro", gpt, 4, 4, 128},
      {"gpt-nano", gpt, 3, 3, 48},
      {"bloom-560m", bloom, 24, 16, 1024, bloom_vocabulary, bloom_sequence},
      {"bloom-1b1", bloom, 24, 16, 1536, bloom_vocabulary, bloom_sequence},
      {"bloom-1b7", bloom, 24, 16, 2048, bloom_vocabulary, bloom_sequence},
      {"bloom-3b", bloom, 30, 32, 2560, bloom_vocabulary, bloom_sequence},
      {"bloom-7b1", bloom, 30, 32, 4096, bloom_vocabulary, bloom_sequence},
      // Megatron-LM pads GPT-2's 50257 to a multiple of 128.
      {"bloom-13b", bloom, 40, 32, 5120, 50304, bloom_sequence},
      {"bloom-176b", bloom, 70, 112, 14336, bloom_vocabulary, bloom_sequence},
      {"llama-2-7b", llama, 32, 32, 4096, 32000, 4096, 32, 11008},
      {"llama-3.1-8b", llama, 32, 32, 4096, 128256, 131072, 8, 14336, 5e5, false, 0, 8.0},
      {"llama-3.2-1b", llama, 16, 32, 2048, 128256, 131072, 8, 8192, 5e5, true, 64, 32.0},
      {"llama-3.2-3b", llama, 28, 24, 3072, 128256, 131072, 8, 8192, 5e5, true, 128, 32.0},
      {"smollm2-135m", llama, 30, 9, 576, 49152, 8192, 3, 1536, 1e5, true},
      {"smollm2-360m", llama, 32, 15, 960, 49152, 8192, 5, 2560, 1e5, true},
      {"smollm2-1.7b", llama, 24, 32, 2048, 49152, 8192, 32, 8192, 1.3e5, true},
      {"mistral-7b", mistral, 32, 32, 4096, 32000, 32768, 8, 14336, 1e4, false, 0, 0.0, 4096},
      {"qwen2-0.5b", qwen2, 24, 14, 896, 151936, 131072, 2, 4864, 1e6, true},
      {"qwen2-1.5b", qwen2, 28, 12, 1536, 151936, 131072, 2, 8960, 1e6, true},
      {"qwen3-0.6b", qwen3, 28, 16, 1024, 151936, 40960, 8, 3072, 1e6, true, 128},
      {"qwen3-1.7b", qwen3, 28, 16, 2048, 151936, 40960, 8, 6144, 1e6, true, 128},
      {"qwen3-4b", qwen3, 36, 32, 2560, 151936, 40960, 8, 9728, 1e6, true, 128},
  };
  return all;
}

const Preset& preset_named(const std::string& model_type) {
  for (const Preset& preset : presets())
    if (model_type == preset.name) return preset;
  raise<ConfigError>("gpt: model type: expected one of {}, got '{}'",
                     join(GPTConfig::preset_names(), ", "), model_type);
}

constexpr int64_t largest_head = 1024;  // limit of the attention kernels

void check_extent(const char* field, int64_t value, int64_t maximum) {
  if (value < 1 || value > maximum)
    raise<ConfigError>("gpt: {}: expected 1 to {}, got {}", field, maximum, value);
}

/// An extent of which 0 stands for a default.
void check_optional(const char* field, int64_t value, int64_t maximum) {
  if (value != 0) check_extent(field, value, maximum);
}

}  // namespace

const char* name_of(Position position) {
  constexpr const char* names[] = {"learned", "alibi", "rope"};
  return names[static_cast<size_t>(position)];
}

int64_t head_size_of(const GPTConfig& config) {
  return config.head_size > 0 ? config.head_size : config.width / config.heads;
}
int64_t kv_heads_of(const GPTConfig& config) {
  return config.kv_heads > 0 ? config.kv_heads : config.heads;
}
int64_t hidden_of(const GPTConfig& config) {
  return config.hidden > 0 ? config.hidden : 4 * config.width;
}

int64_t longest_context(const GPTConfig& config) {
  return config.position == Position::rope ? std::max(config.block_size, config.positions)
                                           : config.block_size;
}

GPTConfig GPTConfig::preset(const std::string& model_type) {
  const Preset& preset = preset_named(model_type);
  GPTConfig config = of(preset.family);
  config.layers = preset.layers;
  config.heads = preset.heads;
  config.width = preset.width;
  if (preset.family == Family::gpt) return config;
  config.vocabulary = preset.vocabulary;
  config.block_size = preset.positions;
  if (model_type == "bloom-13b") {
    // tr1-13B of BigScience, which Habana's tutorial calls BLOOM.
    config.position = Position::learned;
    config.embedding_norm = false;
  }
  if (config.position != Position::rope) return config;
  config.block_size = rope_sequence;
  config.positions = preset.positions;
  config.kv_heads = preset.kv_heads;
  config.hidden = preset.hidden;
  config.rope.theta = preset.theta;
  config.tied = preset.tied;
  config.head_size = preset.head_size;
  config.window = preset.window;
  if (preset.llama3_factor > 0.0) {
    config.rope.scaling = RopeScaling::llama3;
    config.rope.factor = preset.llama3_factor;
  }
  return config;
}

GPTConfig GPTConfig::published(const std::string& model_type) {
  const Preset& published = preset_named(model_type);
  GPTConfig config = preset(model_type);
  config.vocabulary = published.vocabulary;
  if (published.family == Family::gpt) config.block_size = published.positions;
  return config;
}

GPTConfig GPTConfig::of(Family family) { return row_of(family).defaults; }

const std::vector<std::string>& GPTConfig::preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Preset& preset : presets()) all.emplace_back(preset.name);
    return all;
  }();
  return names;
}

namespace {

/// Operations of a layer's scores and of their product with the values, for each token in forward.
double attention_flops(const GPTConfig& config) {
  return 2.0 * static_cast<double>(config.block_size * config.heads * head_size_of(config));
}

}  // namespace

double layer_flops(const GPTConfig& config) {
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const double C = number(config.width);
  const double queries = number(config.heads * head_size_of(config)),
               keys = number(kv_heads_of(config) * head_size_of(config));
  const double products = nn::is_gated(config.mlp) ? 3.0 : 2.0;
  return 2.0 * (C * (2.0 * queries + 2.0 * keys) + products * C * number(hidden_of(config))) +
         attention_flops(config);
}

double head_flops(const GPTConfig& config) {
  return 2.0 * static_cast<double>(config.vocabulary) * static_cast<double>(config.width);
}

double matmul_flops_per_token(const GPTConfig& config, bool is_frozen) {
  const auto layers = static_cast<double>(config.layers);
  const double attention = layers * attention_flops(config);
  const double weights = layers * layer_flops(config) - attention + head_flops(config);
  return 3.0 * attention + (is_frozen ? 2.0 : 3.0) * weights;
}

void validate(const GPTConfig& config) {
  check_extent("layers", config.layers, max_layers);
  check_extent("width", config.width, max_width);
  check_extent("heads", config.heads, config.width);
  check_extent("vocabulary", config.vocabulary, max_rows);
  check_extent("block_size", config.block_size, max_rows);
  if (config.head_size == 0 && config.width % config.heads != 0)
    raise<ConfigError>("gpt: heads: expected a divisor of the width {}, got {}", config.width,
                       config.heads);
  if (config.head_size == 0 && config.width / config.heads > largest_head)
    raise<ConfigError>(
        "gpt: heads: expected at least {} for a width of {} (a head size of at most {}), got {}",
        (config.width + largest_head - 1) / largest_head, config.width, largest_head, config.heads);
  check_optional("head_size", config.head_size, largest_head);
  check_optional("hidden", config.hidden, max_width);
  if (config.kv_heads < 0 || config.heads % kv_heads_of(config) != 0)
    raise<ConfigError>("gpt: kv_heads: expected a divisor of the {} heads, got {}", config.heads,
                       config.kv_heads);
  check_optional("window", config.window, max_rows);
  check_optional("query_scalar", config.query_scalar, max_rows);
  check_optional("window_period", config.window_period, max_layers);
  check_optional("positions", config.positions, max_rows);
  if (!(config.norm_epsilon >= 0.0f && std::isfinite(config.norm_epsilon)))
    raise<ConfigError>("gpt: norm_epsilon: expected a finite number from 0, got {:f}",
                       config.norm_epsilon);
  if (config.position == Position::rope) {
    validate(config.rope);
    if (config.local_theta != 0.0) validate(RopeOptions{.theta = config.local_theta});
    if (config.rotated_share == 1.0 && head_size_of(config) % 2 != 0)
      raise<ConfigError>(
          "gpt: head_size: rotary positions turn pairs of elements; expected an even size, got {}",
          head_size_of(config));
    if (!(config.rotated_share > 0.0 && config.rotated_share <= 1.0) ||
        static_cast<double>(head_size_of(config)) * config.rotated_share < 2.0)
      raise<ConfigError>(
          "gpt: rotated_share: expected a share of the head size {} of two elements or "
          "more, got {}",
          head_size_of(config), config.rotated_share);
  }
  const FamilyRow& row = row_of(config.family);
  if (has_rope(row) != (config.position == Position::rope))
    raise<ConfigError>("gpt: position: expected {} in the family {}, got {}",
                       has_rope(row) ? "rope" : "learned or alibi", row.name,
                       name_of(config.position));
  if (!has_gate(row) && kv_heads_of(config) != config.heads)
    raise<ConfigError>(
        "gpt: kv_heads: expected {}, as many as heads, in the family {}, got {}; try without "
        "--num-query-groups, or a --model-type of {}",
        config.heads, row.name, kv_heads_of(config), list_families(&FamilyRow::name, has_gate));
  if (!has_gate(row) &&
      (config.norm != nn::NormKind::layer || nn::is_gated(config.mlp) || config.query_key_norm))
    raise<ConfigError>(
        "gpt: family: expected {}, which have names for RMS norms, gates and norms of queries and "
        "keys; got {}",
        list_families(&FamilyRow::name, has_gate), row.name);
  const auto only_where_default = [&](const char* field, auto value, auto default_value) {
    if (value != decltype(value){} && default_value == decltype(value){})
      raise<ConfigError>("gpt: {}: expected {} in the family {}, got {}", field, decltype(value){},
                         row.name, value);
  };
  const GPTConfig& usual = row.defaults;
  only_where_default("parallel_residual", config.parallel_residual, usual.parallel_residual);
  only_where_default("query_scalar", config.query_scalar, usual.query_scalar);
  only_where_default("window_period", config.window_period, usual.window_period);
  only_where_default("local_theta", config.local_theta, usual.local_theta);
  if (!(config.dropout >= 0.0f && config.dropout < 1.0f))
    raise<ConfigError>("gpt: dropout: expected a probability in [0, 1), got {:f}", config.dropout);
  if (config.embedding_norm && !row.names.embedding_norm)
    raise<ConfigError>(
        "gpt: embedding_norm: expected the family bloom, got {}, which has no name for it",
        row.name);
}

}  // namespace zg::models

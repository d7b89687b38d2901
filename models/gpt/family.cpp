#include "zerograd/models/gpt/family.h"

#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/text.h"

namespace zg::models {
namespace {

constexpr DecoderNames gpt_names = {
    .tokens = "transformer.wte",
    .positions = "transformer.wpe",
    .blocks = "transformer.h.",
    .norm_1 = ".ln_1",
    .norm_2 = ".ln_2",
    .attention = {.qkv = ".attn.c_attn", .out = ".attn.c_proj"},
    .mlp = {.gate = nullptr, .up = ".mlp.c_fc", .down = ".mlp.c_proj"},
    .norm_f = "transformer.ln_f",
    .conv1d = true};

constexpr DecoderNames bloom_names = {
    .tokens = "transformer.word_embeddings",
    .positions = "transformer.position_embeddings",
    .embedding_norm = "transformer.word_embeddings_layernorm",
    .blocks = "transformer.h.",
    .norm_1 = ".input_layernorm",
    .norm_2 = ".post_attention_layernorm",
    .attention = {.qkv = ".self_attention.query_key_value", .out = ".self_attention.dense"},
    .mlp = {.gate = nullptr, .up = ".mlp.dense_h_to_4h", .down = ".mlp.dense_4h_to_h"},
    .norm_f = "transformer.ln_f",
    .qkv_order = QKVOrder::by_head};

constexpr DecoderNames llama_names = {
    .tokens = "model.embed_tokens",
    .blocks = "model.layers.",
    .norm_1 = ".input_layernorm",
    .norm_2 = ".post_attention_layernorm",
    .attention = {.q = ".self_attn.q_proj",
                  .k = ".self_attn.k_proj",
                  .v = ".self_attn.v_proj",
                  .qkv = nullptr,
                  .out = ".self_attn.o_proj",
                  .q_norm = ".self_attn.q_norm",
                  .k_norm = ".self_attn.k_norm"},
    .mlp = {.gate = ".mlp.gate_proj", .up = ".mlp.up_proj", .down = ".mlp.down_proj"},
    .norm_f = "model.norm"};

constexpr DecoderNames gpt_neox_names = {
    .tokens = "gpt_neox.embed_in",
    .blocks = "gpt_neox.layers.",
    .norm_1 = ".input_layernorm",
    .norm_2 = ".post_attention_layernorm",
    .attention = {.qkv = ".attention.query_key_value", .out = ".attention.dense"},
    .mlp = {.gate = nullptr, .up = ".mlp.dense_h_to_4h", .down = ".mlp.dense_4h_to_h"},
    .norm_f = "gpt_neox.final_layer_norm",
    .head = "embed_out",
    .qkv_order = QKVOrder::by_head};

DecoderNames olmo2_names() {
  DecoderNames names = llama_names;
  names.norm_1 = names.norm_2 = nullptr;
  names.post_norm_1 = ".post_attention_layernorm";
  names.post_norm_2 = ".post_feedforward_layernorm";
  return names;
}

DecoderNames gemma3_names() {
  DecoderNames names = olmo2_names();
  names.norm_1 = ".input_layernorm";
  names.norm_2 = ".pre_feedforward_layernorm";
  return names;
}

DecoderNames phi3_names() {
  DecoderNames names = llama_names;
  names.attention.qkv = ".self_attn.qkv_proj";
  names.mlp.gate_up = ".mlp.gate_up_proj";
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

}  // namespace zg::models

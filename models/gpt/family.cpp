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

constexpr GPTConfig bloom_defaults = {
    .tied = true, .family = Family::bloom, .position = Position::alibi, .embedding_norm = true};

/// With Llama's blocks.
GPTConfig llama_defaults(GPTConfig config) {
  config.dropout = 0.0f;
  config.position = Position::rope;
  config.norm = nn::NormKind::rms;
  config.mlp = nn::MlpKind::gated_silu;
  config.bias = false;
  return config;
}

FamilyRow llama_row(const char* name, const char* title, const char* hf_class, const char* gguf,
                    const GPTConfig& config) {
  return {name, title, name, hf_class, llama_names, llama_defaults(config), gguf};
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

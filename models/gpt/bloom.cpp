#include "zerograd/models/gpt/bloom.h"

namespace zg::models {
namespace {

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

/// tr1-13B of BigScience, whose script the tutorial runs under the name BLOOM.
constexpr GPTConfig tutorial() {
  GPTConfig config = sized(40, 32, 5120);
  config.vocabulary = padded_gpt2_vocabulary;
  config.position = Position::learned;
  config.embedding_norm = false;
  return config;
}

constexpr NamedConfig presets[] = {
    {"bloom-560m", sized(24, 16, 1024)},   {"bloom-1b1", sized(24, 16, 1536)},
    {"bloom-1b7", sized(24, 16, 2048)},    {"bloom-3b", sized(30, 32, 2560)},
    {"bloom-7b1", sized(30, 32, 4096)},    {"bloom-13b", tutorial()},
    {"bloom-176b", sized(70, 112, 14336)},
};

}  // namespace

std::span<const NamedConfig> bloom_presets() { return presets; }

const DecoderNames bloom_names = {
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

}  // namespace zg::models

#include "models/hf_families.h"
#include "runtime/error.h"

namespace zg::models {
namespace {

using nlohmann::json;

constexpr int64_t end_of_text_vocabulary = 50257;

void require_our_arithmetic(const HFReader& reader, int64_t width) {
  reader.require("activation_function", "gelu_new");
  reader.require("layer_norm_epsilon", hf_epsilon);
  reader.require("n_inner", 4 * width);
  reader.require("scale_attn_weights", true);
  reader.require("scale_attn_by_inverse_layer_idx", false);
  reader.require("add_cross_attention", false);
  reader.require("quantization_config", nullptr);
}

}  // namespace

HFModel hf_gpt2_config(const HFReader& reader) {
  GPTConfig config;
  config.width = reader.count("n_embd", 768);
  require_our_arithmetic(reader, config.width);
  config.layers = reader.count("n_layer", 12);
  config.heads = reader.count("n_head", 12);
  config.vocabulary = reader.count("vocab_size", end_of_text_vocabulary);
  config.block_size = reader.count("n_positions", 1024);
  config.tied = reader.flag("tie_word_embeddings", true);
  const double dropout = reader.number("resid_pdrop", 0.1);
  config.dropout = static_cast<float>(dropout);
  if (reader.number("embd_pdrop", 0.1) == dropout && reader.number("attn_pdrop", 0.1) == dropout)
    return {config};
  return {config, "resid_pdrop, embd_pdrop and attn_pdrop"};
}

json hf_gpt2_json(const GPTConfig& config) {
  if (config.position != Position::learned)
    throw Unsupported(
        "export: position is alibi; expected learned: transformers' GPT-2 has no other");
  const json token = config.vocabulary == end_of_text_vocabulary
                         ? json(end_of_text_vocabulary - 1)  // <|endoftext|>
                         : json(nullptr);
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
          {"bos_token_id", token},
          {"eos_token_id", token},
          {"torch_dtype", "float32"},
          {"use_cache", true}};
}

}  // namespace zg::models

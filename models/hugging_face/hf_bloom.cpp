#include "zerograd/models/gpt/bloom.h"
#include "zerograd/models/hugging_face/hf_families.h"
#include "zerograd/runtime/error.h"

namespace zg::models {

using nlohmann::json;

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

}  // namespace zg::models

#include <algorithm>

#include "zerograd/models/hugging_face/hf_families.h"
#include "zerograd/runtime/error.h"

namespace zg::models {
namespace {

using nlohmann::json;

constexpr int64_t published_vocabulary = 50257;
constexpr int32_t end_of_text = 50256;  // <|endoftext|>

// The tanh approximation of GELU has five names in transformers.
constexpr const char* tanh_gelus[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh",
                                      "gelu_fast", "gelu_accurate"};

void require_our_arithmetic(const HFReader& reader, int64_t width) {
  const json* activation = reader.find("activation_function");
  if (activation &&
      std::find(std::begin(tanh_gelus), std::end(tanh_gelus), *activation) == std::end(tanh_gelus))
    reader.refuse("activation_function", "\"gelu_new\" or another name of the tanh approximation");
  reader.require("layer_norm_epsilon", hf_epsilon);
  reader.require("n_inner", 4 * width);
  reader.require("scale_attn_weights", true);
  reader.require("scale_attn_by_inverse_layer_idx", false);
  reader.require("add_cross_attention", false);
  reader.require("pruned_heads", json::object());
  reader.require("quantization_config", nullptr);
}

}  // namespace

HFModel hf_gpt2_config(const HFReader& reader) {
  GPTConfig config;
  config.width = reader.count({"n_embd", "hidden_size"}, 768);
  require_our_arithmetic(reader, config.width);
  config.layers = reader.count({"n_layer", "num_hidden_layers"}, 12);
  config.heads = reader.count({"n_head", "num_attention_heads"}, 12);
  config.vocabulary = reader.count("vocab_size", published_vocabulary);
  config.block_size = reader.count({"n_positions", "max_position_embeddings"}, 1024);
  config.tied = reader.flag("tie_word_embeddings", true);
  const double dropout = reader.number("resid_pdrop", 0.1);
  config.dropout = static_cast<float>(dropout);
  const bool one_for_all =
      reader.number("embd_pdrop", 0.1) == dropout && reader.number("attn_pdrop", 0.1) == dropout;
  return {.config = config,
          .tokens = hf_tokens(reader, {.bos = end_of_text, .pad = {}, .eos = {end_of_text}},
                              config.vocabulary),
          .dropouts = one_for_all ? "" : "resid_pdrop, embd_pdrop and attn_pdrop"};
}

json hf_gpt2_json(const GPTConfig& config) {
  if (config.position != Position::learned)
    throw Unsupported(
        "export: position is alibi; expected learned: transformers' GPT-2 has no other");
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
          {"torch_dtype", "float32"},
          {"use_cache", true}};
}

}  // namespace zg::models

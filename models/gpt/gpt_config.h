#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/models/nn.h"
#include "zerograd/runtime/api.h"

namespace zg {
struct Mesh;
}

namespace zg::models {

/// The model family that defines names and layout of a decoder's parameters.
enum class Family : uint8_t {
  gpt,    ///< minGPT and GPT-2; all queries, then all keys, then all values
  bloom,  ///< BLOOM in Hugging Face's layout; queries, keys and values of each head together
  // Hugging Face's names of Llama; queries, keys and values are three parameters.
  llama,     ///< Llama 2, 3 and 3.2, SmolLM2
  mistral,   ///< a sliding window where the config has one
  qwen2,     ///< biases of queries, keys and values
  qwen3,     ///< norms of queries and keys, a head size of its own
  gpt_neox,  ///< GPT-NeoX and Pythia: attention and feed-forward side by side, rotary positions
  olmo2,     ///< norms of what attention and feed-forward layer give, in place of their input
  gemma3,    ///< Gemma 3 (text): norms on both sides, a window in all but every sixth layer
  phi3       ///< Phi-3: one matrix for queries, keys and values, one for gate and up
};
enum class Position : uint8_t {
  learned,  ///< a table with one row for each of block_size positions
  alibi,    ///< bias that grows with distance. Press et al. 2022, arXiv:2108.12409
  rope      ///< rotary positions, GPTConfig::rope
};
inline constexpr Family all_families[] = {
    Family::gpt,   Family::bloom,    Family::llama, Family::mistral, Family::qwen2,
    Family::qwen3, Family::gpt_neox, Family::olmo2, Family::gemma3,  Family::phi3};
ZG_API const char* name_of(Family family);
ZG_API const char* name_of(Position position);

/// A decoder-only transformer with norms before its layers and no bias in the head: minGPT's
/// (Radford et al. 2019), BLOOM's, or one of Llama's family (Touvron et al. 2023,
/// arXiv:2307.09288). The fields describe it; of() and preset() fill them.
struct GPTConfig {
  int64_t layers = 3, heads = 3, width = 48;
  int64_t vocabulary = 0;
  int64_t block_size = 0;  ///< the longest sequence
  bool tied = false;       ///< head and token embedding share one parameter
  float dropout = 0.1f;    ///< on embeddings, attention weights and both residual branches
  Family family = Family::gpt;
  Position position = Position::learned;
  bool embedding_norm = false;  ///< LayerNorm of the token embedding; only with bloom's names

  int64_t kv_heads = 0;   ///< grouped queries: key-value heads; 0: as many as heads
  int64_t head_size = 0;  ///< 0: width / heads
  int64_t hidden = 0;     ///< width of the feed-forward layer; 0: 4 width
  nn::NormKind norm = nn::NormKind::layer;
  float norm_epsilon = 1e-5f;
  nn::MlpKind mlp = nn::MlpKind::gelu_tanh;
  bool bias = true;      ///< of all linear layers but the head and, with a gate, the feed-forward
  bool qkv_bias = true;  ///< of queries, keys and values
  bool query_key_norm = false;  ///< RMS norm of each head's queries and keys
  int64_t window = 0;           ///< sliding window in tokens; 0: none
  RopeOptions rope = {};        ///< with Position::rope
  /// With Position::rope: the longest text that the published model was trained for, which
  /// Hugging Face's config names; 0: block_size. block_size may be less, and costs memory.
  int64_t positions = 0;
  double rotated_share = 1.0;  ///< of a head's elements that rope turns
  /// Attention and feed-forward layer both read the block's input; only with gpt_neox's names.
  bool parallel_residual = false;
  int64_t query_scalar = 0;   ///< scores are divided by its square root; 0: the head size
  int64_t window_period = 0;  ///< every layer of this number has no window; 0: all have it
  double local_theta = 0.0;   ///< base of plain rotary positions in layers with a window; 0: rope

  /// One of minGPT's nine names, "gpt-nano" to "gpt2-xl", without vocabulary and block size, or one
  /// of BLOOM's, "bloom-560m" to "bloom-176b", or of Llama's family ("llama-3.2-1b", "mistral-7b",
  /// "qwen3-0.6b", "smollm2-135m", ...), with both. ConfigError lists the names.
  ZG_API static GPTConfig preset(const std::string& model_type);
  /// preset() with vocabulary and block size of the published model. Both are 0 for gpt-mini,
  /// gpt-micro and gpt-nano, which were not published. Head and embedding are as in preset().
  ZG_API static GPTConfig published(const std::string& model_type);
  /// The family's defaults. BLOOM has ALiBi, a LayerNorm of the embedding and a tied head. Llama's
  /// family has RMS norms, rotary positions, a SiLU gate, and no dropout.
  ZG_API static GPTConfig of(Family family);
  ZG_API static const std::vector<std::string>& preset_names();
  bool operator==(const GPTConfig&) const = default;
};
/// The head size, the key-value heads and the hidden width with 0 replaced by their defaults.
ZG_API int64_t head_size_of(const GPTConfig& config);
ZG_API int64_t kv_heads_of(const GPTConfig& config);
ZG_API int64_t hidden_of(const GPTConfig& config);

/// The longest text that generation takes as a context: block_size, or with Position::rope also the
/// positions of the published model.
ZG_API int64_t longest_context(const GPTConfig& config);

/// Throws ConfigError naming the field. Extents must be positive, heads must divide width unless
/// there is a head size of at most 1024, kv_heads must divide heads, dropout must be in [0, 1), and
/// the family must have names for all parameters.
ZG_API void validate(const GPTConfig& config);

/// Floating-point operations of one layer's matrix products for each token in forward; a
/// multiply-add counts as two. A token attends to half a block on average.
ZG_API double layer_flops(const GPTConfig& config);
/// Operations of the head's matrix product for each token in forward.
ZG_API double head_flops(const GPTConfig& config);
/// Operations of all layers and the head for each token in forward and backward. Backward has two
/// products for each one of forward; one for that of a weight if the weights are frozen, as beside
/// adapters, whose own products are not included. Recomputation is not included.
ZG_API double matmul_flops_per_token(const GPTConfig& config, bool is_frozen = false);

// BLOOM as in Hugging Face's transformers (BloomForCausalLM). BigScience 2022, arXiv:2211.05100. It
// is the decoder of gpt.h with a LayerNorm after the token embedding, ALiBi instead of learned
// positions, queries, keys and values fused head by head, and a tied head.

inline constexpr int64_t bloom_vocabulary = 250880;  ///< `<unk>`, `<s>`, `</s>`, `<pad>`, ...
inline constexpr int64_t bloom_sequence =
    2048;  ///< sequence length with which every BLOOM model was trained

/// The longest sequence of a published model with rotary positions, unless a program asks for more.
/// Their tables would allow 4096 to 131072.
inline constexpr int64_t rope_sequence = 2048;

/// The part of a model that one rank has: layers [first_layer, end_layer), the embedding if they
/// include the first layer, the head if end_layer is -1. The rank has its tensor-parallel slice of
/// each layer. Another range is a ConfigError.
struct GPTPart {
  const Mesh* mesh = nullptr;  ///< null: the whole model; it must outlive the model
  int64_t first_layer = 0;
  /// -1: to the last layer, and the head. The number of layers: to the last layer, and its norm;
  /// stage() then returns the last hidden state [B, T, C], for a head of your own.
  int64_t end_layer = -1;
  DType activations = DType::f32;  ///< dtype of the tensor that is sent between stages
  /// Between the split layers each tensor rank has a slice of the tokens
  /// (TensorParallel::sequence).
  bool sequence_parallel = false;
  int reduction_groups = 0;  ///< TensorParallel::groups
};

}  // namespace zg::models

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg::models {

/// The model family that defines names and layout of a decoder's parameters.
enum class Family : uint8_t {
  gpt,   ///< minGPT and GPT-2; all queries, then all keys, then all values
  bloom  ///< BLOOM in Hugging Face's layout; queries, keys and values of each head together
};
enum class Position : uint8_t {
  learned,  ///< a table with one row for each of block_size positions
  alibi     ///< bias that grows with distance. Press et al. 2022, arXiv:2108.12409
};
ZG_API const char* name_of(Family family);
ZG_API const char* name_of(Position position);

/// A decoder-only transformer as in minGPT (Radford et al. 2019) or BLOOM: pre-LayerNorm blocks,
/// tanh-GELU, no bias in the head.
struct GPTConfig {
  int64_t layers = 3, heads = 3, width = 48;
  int64_t vocabulary = 0;
  int64_t block_size = 0;  ///< the longest sequence
  bool tied = false;       ///< head and token embedding share one parameter
  float dropout = 0.1f;    ///< on embeddings, attention weights and both residual branches
  Family family = Family::gpt;
  Position position = Position::learned;
  bool embedding_norm = false;  ///< LayerNorm of the token embedding; only with bloom's names

  /// One of minGPT's nine names, "gpt-nano" to "gpt2-xl", without vocabulary and block size, or one
  /// of BLOOM's, "bloom-560m" to "bloom-176b", with both. Throws ConfigError listing the names.
  ZG_API static GPTConfig preset(const std::string& model_type);
  /// preset() with vocabulary and block size of the published model. Both are 0 for gpt-mini,
  /// gpt-micro and gpt-nano, which were not published. Head and embedding are as in preset().
  ZG_API static GPTConfig published(const std::string& model_type);
  /// The family's defaults. BLOOM has ALiBi, a LayerNorm of the embedding and a tied head.
  ZG_API static GPTConfig of(Family family);
  ZG_API static const std::vector<std::string>& preset_names();
};
/// Throws ConfigError naming the field. Extents must be positive, heads must divide width with a
/// head size of at most 1024, dropout must be in [0, 1), and the family must have names for all
/// parameters.
ZG_API void validate(const GPTConfig& config);

/// Floating-point operations of one layer's matrix products for each token in forward; a
/// multiply-add counts as two. A token attends to half a block on average.
ZG_API double layer_flops(const GPTConfig& config);
/// Operations of the head's matrix product for each token in forward.
ZG_API double head_flops(const GPTConfig& config);
/// Operations of all layers and the head for each token in forward and backward. Backward has two
/// products for each one of forward. Recomputation is not included.
ZG_API double matmul_flops_per_token(const GPTConfig& config);

// BLOOM as in Hugging Face's transformers (BloomForCausalLM). BigScience 2022, arXiv:2211.05100. It
// is the decoder of gpt.h with a LayerNorm after the token embedding, ALiBi instead of learned
// positions, queries, keys and values fused head by head, and a tied head.

inline constexpr int64_t bloom_vocabulary = 250880;  ///< `<unk>`, `<s>`, `</s>`, `<pad>`, ...
inline constexpr int64_t bloom_sequence =
    2048;  ///< sequence length with which every BLOOM model was trained

inline constexpr GPTConfig bloom_family = {
    .tied = true, .family = Family::bloom, .position = Position::alibi, .embedding_norm = true};

/// A family's names of decoder parameters, without ".weight" and ".bias".
struct DecoderNames {
  const char *tokens, *positions;
  const char* embedding_norm;  ///< null: the family has none
  const char *norm_1, *qkv, *attention_out, *norm_2, *mlp_in, *mlp_out;  ///< after block_name()
  const char* norm_f;
};

/// The name of block N, "transformer.h.N" in both families.
ZG_API std::string block_name(int64_t layer);
ZG_API const DecoderNames& names_of(Family family);

}  // namespace zg::models

#pragma once

#include <span>

#include "zerograd/models/gpt/names.h"

// BLOOM as Hugging Face's transformers has it (BloomForCausalLM). BigScience 2022,
// arXiv:2211.05100. It is the decoder of gpt.h with a LayerNorm behind the token embedding, ALiBi
// instead of learned positions, queries, keys and values fused head by head and the head tied.
namespace zg::models {

inline constexpr int64_t bloom_vocabulary = 250880;  ///< begins with <unk>, <s>, </s>, <pad>
inline constexpr int64_t bloom_sequence =
    2048;  ///< sequence length with which every BLOOM model was trained

inline constexpr GPTConfig bloom_family = {
    .tied = true, .family = Family::bloom, .position = Position::alibi, .embedding_norm = true};

struct NamedConfig {
  const char* name;
  GPTConfig config;
};
/// "bloom-560m" to "bloom-176b", and "bloom-13b", which is the model of Habana's BLOOM tutorial:
/// BLOOM's layout with learned positions, no norm of the embedding and GPT-2's vocabulary.
std::span<const NamedConfig> bloom_presets();

extern const DecoderNames bloom_names;

}  // namespace zg::models

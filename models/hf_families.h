#pragma once

#include "zerograd/models/hf_reader.h"
#include "zerograd/models/hugging_face.h"

// What hf_config() and hf_json() take together, a family each.
namespace zg::models {

inline constexpr double hf_epsilon = 1e-5;  // of our layer_norm

/// 0.1f as people write it, not as a double holds it.
double hf_number(float value);

/// The special tokens of a config, those that lie in the vocabulary.
SpecialTokens hf_tokens(const HFReader& reader, const SpecialTokens& absent, int64_t vocabulary);

HFModel hf_gpt2_config(const HFReader& reader);
HFModel hf_bloom_config(const HFReader& reader);
nlohmann::json hf_gpt2_json(const GPTConfig& config);   ///< without tokens
nlohmann::json hf_bloom_json(const GPTConfig& config);  ///< without tokens

}  // namespace zg::models

#pragma once

#include "zerograd/models/hugging_face/hf_reader.h"
#include "zerograd/models/hugging_face/hugging_face.h"

// Helpers shared by hf_config() and hf_json(), for each family.
namespace zg::models {

inline constexpr double hf_epsilon = 1e-5;  // epsilon of our layer_norm

/// The shortest decimal number for a float: 0.1f gives 0.1 and not 0.100000001.
double hf_number(float value);

/// The special tokens of a config that are in the vocabulary.
SpecialTokens hf_tokens(const HFReader& reader, const SpecialTokens& absent, int64_t vocabulary);

HFModel hf_gpt2_config(const HFReader& reader);
HFModel hf_bloom_config(const HFReader& reader);
nlohmann::json hf_gpt2_json(const GPTConfig& config);   ///< without tokens
nlohmann::json hf_bloom_json(const GPTConfig& config);  ///< without tokens

}  // namespace zg::models

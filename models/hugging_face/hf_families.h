#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/text/json_node.h"

// Parts of hf_config() and hf_json() that the sources of this folder share.
namespace zg::models {

/// The shortest decimal number for a float: 0.1f gives 0.1 and not 0.100000001.
double hf_number(float value);
/// Token ids: one, several, or none for null.
std::vector<int32_t> hf_ids(const JsonNode& config, const char* key, std::vector<int32_t> absent);
/// As transformers writes ids: null, one as a number, several as a list.
nlohmann::json hf_ids(const std::vector<int32_t>& tokens);
nlohmann::json hf_id(std::optional<int32_t> token);
/// True for the names of the tanh approximation of GELU, of which transformers has five.
bool is_tanh_gelu(const JsonNode& activation);
/// Sets the dtype of the weights, by the keys of transformers 5 and 4.
void set_hf_dtype(nlohmann::json& config, DType dtype);
float epsilon_at(const JsonNode& theirs, const char* key, double absent);
/// The special tokens of a config that are in the vocabulary.
SpecialTokens hf_tokens(const JsonNode& theirs, const SpecialTokens& absent, int64_t vocabulary);

HFModel hf_llama_config(const JsonNode& theirs, Family family);
/// Without tokens.
nlohmann::json hf_llama_json(const GPTConfig& config);

}  // namespace zg::models

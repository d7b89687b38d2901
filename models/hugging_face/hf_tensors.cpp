#include <algorithm>
#include <map>

#include "zerograd/models/hugging_face/hugging_face.h"

namespace zg::models {
namespace {

constexpr const char* prefix = "transformer.";
constexpr const char* conv1d_weights[] = {".attn.c_attn.weight", ".attn.c_proj.weight",
                                          ".mlp.c_fc.weight", ".mlp.c_proj.weight"};
constexpr const char* masks[] = {".attn.bias", ".attn.masked_bias"};

bool ends_with_any(const std::string& name, std::span<const char* const> ends) {
  for (const char* end : ends)
    if (name.ends_with(end)) return true;
  return false;
}

}  // namespace

std::vector<HFTensor> hf_tensors(const GPTConfig& config) {
  ParameterStore store;
  const GPT model(store, config);
  std::map<std::string, Shape> by_name;
  for (const auto& parameter : store.parameters())
    by_name.emplace(parameter->name, parameter->shape);
  std::vector<HFTensor> tensors;
  for (const auto& [name, shape] : by_name)
    tensors.push_back(
        {name, shape, config.family == Family::gpt && ends_with_any(name, conv1d_weights)});
  return tensors;
}

std::string hf_short_name(const std::string& name) {
  return name.starts_with(prefix) ? name.substr(std::string(prefix).size()) : name;
}

bool hf_ignores(const std::string& name, const GPTConfig& config) {
  return (config.family == Family::gpt && ends_with_any(name, masks)) ||
         (config.tied && name == "lm_head.weight");
}

std::vector<float> transposed(std::span<const float> values, int64_t rows, int64_t columns) {
  // Tiles that fit the cache: written straight through, large matrices take a miss per element.
  constexpr int64_t tile = 32;
  std::vector<float> result(values.size());
  for (int64_t i = 0; i < rows; i += tile)
    for (int64_t j = 0; j < columns; j += tile)
      for (int64_t r = i; r < std::min(rows, i + tile); ++r)
        for (int64_t c = j; c < std::min(columns, j + tile); ++c)
          result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
  return result;
}

}  // namespace zg::models

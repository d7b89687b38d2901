#include "zerograd/models/hugging_face/hf_keys.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

namespace zg::models {

using nlohmann::json;

int64_t hf_count(const JsonNode& config, const std::vector<const char*>& keys, int64_t absent) {
  const char* first = nullptr;
  for (const char* key : keys) {
    const JsonNode node = config.at(key);
    if (node.value.is_null()) continue;
    const int64_t value = node.count(absent);
    if (first && value != absent) node.fail(fmt::format("{} as {} says", absent, first));
    first = key;
    absent = value;
  }
  return absent;
}

std::vector<int32_t> hf_ids(const JsonNode& config, const char* key, std::vector<int32_t> absent) {
  if (!config.value.contains(key)) return absent;
  const JsonNode node = config.at(key);
  std::vector<int32_t> ids;
  const auto add = [&](const json& id) {
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() &&
         id.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}))
      node.fail("the id of a token, a list of them or null");
    if (id.is_number_unsigned()) ids.push_back(id.get<int32_t>());  // -1 stands for none
  };
  if (node.value.is_array())
    for (const json& id : node.value) add(id);
  else if (!node.value.is_null())
    add(node.value);
  return ids;
}

double hf_number(float value) {
  char digits[32];
  double number = 0.0;
  std::from_chars(digits, std::to_chars(digits, std::end(digits), value).ptr, number);
  return number;
}

nlohmann::json hf_id(std::optional<int32_t> token) { return token ? json(*token) : json(nullptr); }

// Like transformers: one id as a number, several as a list.
nlohmann::json hf_ids(const std::vector<int32_t>& tokens) {
  return tokens.empty() ? json(nullptr) : tokens.size() == 1 ? json(tokens.front()) : json(tokens);
}

bool is_tanh_gelu(const JsonNode& activation) {
  constexpr const char* names[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast",
                                   "gelu_accurate"};
  return std::find(std::begin(names), std::end(names), activation.value) != std::end(names);
}

nn::MlpKind hf_gelu(const JsonNode& activation, nn::MlpKind absent) {
  if (activation.value.is_null()) return absent;
  if (activation.value == "gelu" || activation.value == "gelu_python") return nn::MlpKind::gelu_erf;
  if (is_tanh_gelu(activation)) return nn::MlpKind::gelu_tanh;
  activation.refuse("\"gelu\" or \"gelu_new\"");
}

void set_hf_dtype(nlohmann::json& config, DType dtype) {
  config["dtype"] = config["torch_dtype"] = dtype == DType::bf16  ? "bfloat16"
                                            : dtype == DType::f16 ? "float16"
                                                                  : "float32";
}

}  // namespace zg::models

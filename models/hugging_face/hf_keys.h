#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <vector>

#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

// Key maps of config.json. Each kind of model has a list of rows; one reader and one writer process
// every list.
namespace zg::models {

/// The shortest decimal number for a float: 0.1f gives 0.1 and not 0.100000001.
double hf_number(float value);
/// Reads the token ids of a key: a number, a list, or null for none. `absent`: those of no key.
std::vector<int32_t> hf_ids(const JsonNode& config, const char* key, std::vector<int32_t> absent);
/// Token ids as transformers writes them: none as null, one as a number, several as a list.
nlohmann::json hf_ids(const std::vector<int32_t>& tokens);
nlohmann::json hf_id(std::optional<int32_t> token);
/// Reads a count that has several possible keys. The keys that are present must have equal values.
int64_t hf_count(const JsonNode& config, const std::vector<const char*>& keys, int64_t absent);
/// True for the names of the tanh approximation of GELU, of which transformers has five.
bool is_tanh_gelu(const JsonNode& activation);
/// The kind of GELU (gelu_erf or gelu_tanh) that transformers gives this name.
nn::MlpKind hf_gelu(const JsonNode& activation, nn::MlpKind absent);
/// Sets the dtype of the weights, by the keys of transformers 5 and 4.
void set_hf_dtype(nlohmann::json& config, DType dtype);

/// A row of a model's key map: a key of config.json, or several for one setting.
template <class Config>
struct HFKey {
  const char* field;  ///< Config's field in messages of validate(); null: none
  const char* key;
  std::function<void(const JsonNode& theirs, Config& config)> read;
  std::function<void(nlohmann::json& written, const Config& config)> write = {};
};

inline bool hf_value(const JsonNode& node, bool absent) { return node.flag(absent); }
inline float hf_value(const JsonNode& node, float absent) {
  return static_cast<float>(node.number(absent));
}

/// A row that reads and writes one member. `absent` is transformers' value if config.json lacks the
/// key. If there are several keys, the first is written. `shown` computes the value to write; null:
/// the member's value.
template <class Config, class T>
HFKey<Config> hf_row(const char* field, T Config::*member, std::vector<const char*> keys,
                     std::type_identity_t<T> absent, T (*shown)(const Config&) = nullptr) {
  return {field, keys.front(),
          [=](const JsonNode& theirs, Config& config) {
            if constexpr (std::is_same_v<T, int64_t>)
              config.*member = hf_count(theirs, keys, absent);
            else
              config.*member = hf_value(theirs.at(keys.front()), absent);
          },
          [=](nlohmann::json& written, const Config& config) {
            const T value = shown ? shown(config) : config.*member;
            if constexpr (std::is_same_v<T, float>)
              written[keys.front()] = hf_number(value);
            else
              written[keys.front()] = value;
          }};
}

/// How config.json describes a model.
template <class Config>
struct HFMap {
  std::vector<HFKey<Config>> keys;
  /// Keys that must have these values if they are present: with other values the file describes
  /// another model. `fixed` is written to a new file, `required` is not.
  nlohmann::json fixed = nlohmann::json::object(), required = nlohmann::json::object();

  void read(const JsonNode& theirs, Config& config) const {
    for (const HFKey<Config>& row : keys) row.read(theirs, config);
    for (const nlohmann::json* all : {&fixed, &required})
      for (const auto& [key, value] : all->items()) theirs.at(key).require(value);
    theirs.at("pruned_heads").require(nlohmann::json::object());
    theirs.at("quantization_config").require(nullptr);
  }
  nlohmann::json write(const char* name_of_class, const char* type, const Config& config) const {
    nlohmann::json written = fixed;
    written["architectures"] = {name_of_class};
    written["model_type"] = type;
    written["use_cache"] = true;
    for (const HFKey<Config>& row : keys)
      if (row.write) row.write(written, config);
    return written;
  }
};

using DecoderKey = HFKey<GPTConfig>;
/// A family's keys of rotary positions and transformers' values for absent ones.
struct RopeKeys {
  const char *theta = "rope_theta", *share = "partial_rotary_factor";
  std::optional<double> rotated_share = {};  ///< if the key is absent; none: only 1 is valid
  double theta_absent = 1e4;
  const char* local_theta = nullptr;  ///< for layers with a window (absent: 1e4); null: no key
  bool has_longrope = false;          ///< longrope is the only scaling
};
/// Rotary positions: `rope_scaling` of transformers 4, or `rope_parameters` of 5.
DecoderKey hf_rope(const RopeKeys& keys = {});
/// Which keys a family has for its sliding window.
enum class WindowKeys : uint8_t { none, one, qwen };
DecoderKey hf_window(WindowKeys keys, int64_t absent = 0);
/// Gemma 3's sliding window, which every window_period-th layer lacks.
DecoderKey hf_window_period();

/// GELU in one of its forms.
template <class Config>
HFKey<Config> hf_activation(const char* key, nn::MlpKind absent) {
  return {
      nullptr, key,
      [=](const JsonNode& theirs, Config& config) { config.mlp = hf_gelu(theirs.at(key), absent); },
      [=](nlohmann::json& written, const Config& config) {
        written[key] = config.mlp == nn::MlpKind::gelu_tanh ? "gelu_new" : "gelu";
      }};
}

}  // namespace zg::models

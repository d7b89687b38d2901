#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json_node.h"

// Key maps of config.json: a model is a list of rows, and one reader and one writer take them all.
namespace zg::models {

/// The shortest decimal number for a float: 0.1f gives 0.1 and not 0.100000001.
double hf_number(float value);
/// Token ids: one, several, or none for null.
std::vector<int32_t> hf_ids(const JsonNode& config, const char* key, std::vector<int32_t> absent);
/// As transformers writes ids: null, one as a number, several as a list.
nlohmann::json hf_ids(const std::vector<int32_t>& tokens);
nlohmann::json hf_id(std::optional<int32_t> token);
/// One count that may have several keys. Those that are present must be equal.
int64_t hf_count(const JsonNode& config, const std::vector<const char*>& keys, int64_t absent);
/// True for the names of the tanh approximation of GELU, of which transformers has five.
bool is_tanh_gelu(const JsonNode& activation);
/// gelu_erf or gelu_tanh by transformers' names.
nn::MlpKind hf_gelu(const JsonNode& activation, nn::MlpKind absent);
/// Sets the dtype of the weights, by the keys of transformers 5 and 4.
void set_hf_dtype(nlohmann::json& config, DType dtype);

/// A row of a model's key map: a key of config.json, or several for one setting.
template <class Config>
struct HFKey {
  const char* field;  ///< of Config, as validate() names it; null: none
  const char* key;
  std::function<void(const JsonNode& theirs, Config& config)> read;
  std::function<void(nlohmann::json& written, const Config& config)> write = {};
};

inline bool hf_value(const JsonNode& node, bool absent) { return node.flag(absent); }
inline float hf_value(const JsonNode& node, float absent) {
  return static_cast<float>(node.number(absent));
}

/// A row of one member. `absent` is transformers' value where config.json lacks the key. Of several
/// keys for one setting the first is written. `shown` is the value to write, if not the member's.
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
  /// Objects with keys whose other values would be another model: written, or left out as absent.
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
  std::optional<double> rotated_share = {};  ///< absent: only 1
  double theta_absent = 1e4;
  const char* local_theta = nullptr;  ///< of layers with a window, 1e4 if absent; null: no such key
  bool has_longrope = false;          ///< the only scaling
};
/// Rotary positions: `rope_scaling` of transformers 4, or `rope_parameters` of 5.
DecoderKey hf_rope(const RopeKeys& keys = {});
/// Which keys a family has for its sliding window.
enum class WindowKeys : uint8_t { none, one, qwen };
DecoderKey hf_window(WindowKeys keys, int64_t absent = 0);
/// Gemma's: every layer of some number has none.
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

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hf_keys.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json_node.h"

// Rotary positions and sliding windows in config.json.
namespace zg::models {

using nlohmann::json;

namespace {

/// `rope_scaling` of transformers 4 (`type` or `rope_type`), or `rope_parameters` of 5. A key is
/// required where transformers requires it: another value would be another model.
void read_rope(const JsonNode& theirs, GPTConfig& config) {
  RopeOptions& rope = config.rope;
  const JsonNode newer = theirs.at("rope_parameters");
  const bool is_newer = !newer.value.is_null();
  const JsonNode scaling = is_newer ? newer : theirs.at("rope_scaling");
  if (!scaling.value.is_null() && !scaling.value.is_object()) scaling.fail("an object");
  // Which of two values counts depends on the version of transformers.
  const JsonNode older = theirs.at("rope_scaling");
  if (is_newer && !older.value.is_null() && older.value != newer.value)
    older.refuse("it absent, or equal to rope_parameters");
  const auto once = [&](const char* key) {
    const JsonNode outer = theirs.at(key);
    if (!scaling.value.is_object() || !scaling.value.contains(key)) return outer;
    const JsonNode inner = scaling.at(key);
    if (!outer.value.is_null() && outer.value != inner.value) outer.refuse(inner.value.dump());
    return inner;
  };
  rope.theta = once("rope_theta").number(1e4);
  once("partial_rotary_factor").require(1.0);
  if (scaling.value.is_null()) return;
  for (const auto& [key, value] : scaling.value.items())
    if (value.is_object()) scaling.at(key).refuse("no object: one rope for all layers");
  const JsonNode type = scaling.at(scaling.value.contains("rope_type") ? "rope_type" : "type");
  if (type.value.is_null() || type.text() == "default") return;
  const auto required = [&scaling](const char* key) {
    const JsonNode node = scaling.at(key);
    if (node.value.is_null()) node.fail("a number");
    return node;
  };
  constexpr const char* original = "original_max_position_embeddings";
  if (type.text() == "linear") {
    rope.scaling = RopeScaling::linear;
  } else if (type.text() == "llama3") {
    rope.scaling = RopeScaling::llama3;
    rope.original_positions = once(original).count(config.positions);
    rope.low_freq_factor = required("low_freq_factor").number(1.0);
    rope.high_freq_factor = required("high_freq_factor").number(4.0);
  } else if (type.text() == "yarn") {
    rope.scaling = RopeScaling::yarn;
    rope.original_positions = once(original).count(config.positions);
    rope.beta_fast = scaling.at("beta_fast").number(rope.beta_fast);
    rope.beta_slow = scaling.at("beta_slow").number(rope.beta_slow);
    const JsonNode factor = scaling.at("attention_factor");
    rope.attention_factor = factor.number(0.0);
    if (!factor.value.is_null() && !(rope.attention_factor > 0.0)) factor.fail("a number above 0");
    rope.truncate = scaling.at("truncate").flag(true);
    scaling.at("mscale").require(nullptr);
    scaling.at("mscale_all_dim").require(nullptr);
  } else {
    type.refuse("default, linear, llama3 or yarn");
  }
  rope.factor = required("factor").number(1.0);
}

/// The sliding window; 0: none. Qwen's configs have one, and use it in all, some or no layers.
int64_t window_of(const JsonNode& theirs, Family family, int64_t layers) {
  const JsonNode window = theirs.at("sliding_window"), types = theirs.at("layer_types");
  if (!types.value.is_null()) {
    if (!types.value.is_array() || std::ssize(types.value) != layers)
      types.fail(fmt::format("a list with a type for each of the {} layers", layers));
    for (const json& type : types.value)
      if (type != "full_attention" && type != "sliding_attention")
        types.refuse("full_attention or sliding_attention");
      else if (type == "sliding_attention" && family == Family::llama)
        types.refuse("full_attention");
  }
  if (family == Family::mistral) {
    constexpr int64_t absent = 4096;
    return theirs.value.contains("sliding_window") ? window.count(0) : absent;
  }
  if (family == Family::llama) return 0;  // transformers does not look at it
  // layer_types says it of each layer. Without it layers from max_window_layers on have the window.
  const JsonNode uses = theirs.at("use_sliding_window");
  const bool has_key = theirs.value.contains("sliding_window");
  const int64_t size = has_key && window.value.is_null() ? 0 : window.count(4096);
  int64_t with_window = 0;
  if (types.value.is_array()) {
    for (const json& type : types.value) with_window += type == "sliding_attention";
    if (with_window > 0 && (with_window < layers || !uses.flag(false) || size == 0))
      types.refuse("the same for all layers, and a window only with use_sliding_window");
  } else if (uses.flag(false) && size > 0) {
    const double without =
        std::clamp(theirs.at("max_window_layers").number(28.0), 0.0, static_cast<double>(layers));
    with_window = layers - static_cast<int64_t>(without);
    if (with_window > 0 && with_window < layers)
      uses.refuse("false, or a window in all layers (max_window_layers 0)");
  }
  return with_window > 0 ? size : 0;
}

/// In the keys of transformers 4, which 5 reads, too.
json rope_scaling_of(const GPTConfig& config) {
  const RopeOptions& rope = config.rope;
  if (rope.scaling == RopeScaling::none) return nullptr;
  json scaling = {{"rope_type", name_of(rope.scaling)}, {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::linear) return scaling;
  scaling["original_max_position_embeddings"] = rope.original_positions;
  if (rope.scaling == RopeScaling::llama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  } else {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    scaling["truncate"] = rope.truncate;
    if (rope.attention_factor > 0.0) scaling["attention_factor"] = rope.attention_factor;
  }
  return scaling;
}

}  // namespace

DecoderKey hf_rope() {
  return {"rope: theta", "rope_theta", read_rope, [](json& written, const GPTConfig& config) {
            written["rope_theta"] = config.rope.theta;
            written["rope_scaling"] = rope_scaling_of(config);
          }};
}

DecoderKey hf_window(Family family) {
  return {"window", "sliding_window",
          [family](const JsonNode& theirs, GPTConfig& config) {
            config.window = window_of(theirs, family, config.layers);
          },
          [family](json& written, const GPTConfig& config) {
            if (family == Family::llama) return;
            written["sliding_window"] = config.window > 0 ? json(config.window) : json(nullptr);
            if (family == Family::mistral) return;
            written["use_sliding_window"] = config.window > 0;
            if (config.window == 0) return;
            written["max_window_layers"] = 0;
            written["layer_types"] =
                std::vector<std::string>(static_cast<size_t>(config.layers), "sliding_attention");
          }};
}

}  // namespace zg::models

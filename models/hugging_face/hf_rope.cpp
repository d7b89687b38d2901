#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hf_keys.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

// Rotary positions and sliding windows in config.json.
namespace zg::models {

using nlohmann::json;

namespace {

/// The name of a scaling, whose key is rope_type in new files and type in old ones.
JsonNode type_of(const JsonNode& scaling) {
  return scaling.at(scaling.value.contains("rope_type") ? "rope_type" : "type");
}

/// The attention factor; 0 stands for the default.
double attention_factor_of(const JsonNode& scaling) {
  const JsonNode factor = scaling.at("attention_factor");
  const double value = factor.number(0.0);
  if (!factor.value.is_null() && !(value > 0.0)) factor.fail("a number above 0");
  return value;
}

/// Reads Phi-3's scaling, which files name longrope, su or yarn. `original`: the positions of the
/// training, which transformers reads outside of the scaling.
void read_longrope(const JsonNode& original, const JsonNode& scaling, GPTConfig& config) {
  RopeOptions& rope = config.rope;
  const JsonNode type = type_of(scaling);
  if (type.value != "longrope" && type.value != "su" && type.value != "yarn")
    type.refuse("default or longrope");
  const auto share = static_cast<double>(head_size_of(config)) * config.rotated_share;
  const auto numbers = [&](const char* key) {
    const JsonNode list = scaling.at(key);
    const auto count = static_cast<size_t>(share) / 2;
    if (!list.value.is_array() || list.value.size() != count)
      list.fail(fmt::format("a list of {} numbers, one for each rotated pair of a head", count));
    std::vector<double> values;
    for (const JsonNode& number : list.members()) {
      values.push_back(number.number(0.0));
      if (!(values.back() > 0.0)) number.fail("a number above 0");
    }
    return values;
  };
  rope.scaling = RopeScaling::longrope;
  rope.short_factors = numbers("short_factor");
  rope.long_factors = numbers("long_factor");
  rope.original_positions = original.count(4096);
  if (const JsonNode inner = scaling.at("original_max_position_embeddings");
      !inner.value.is_null() && inner.value != rope.original_positions)
    inner.refuse(fmt::format("the {} of {}", rope.original_positions, original.name));
  const double stretched = static_cast<double>(config.positions);
  rope.factor =
      scaling.at("factor").number(stretched / static_cast<double>(rope.original_positions));
  rope.attention_factor = attention_factor_of(scaling);
}

/// Reads `rope_scaling` of transformers 4 (`type` or `rope_type`), or `rope_parameters` of 5. A key
/// is required if transformers requires it, because a default could describe another model.
void read_rope(const RopeKeys& keys, const JsonNode& theirs, GPTConfig& config) {
  RopeOptions& rope = config.rope;
  const JsonNode all = theirs.at("rope_parameters");
  const bool is_newer = !all.value.is_null();
  const JsonNode newer = is_newer && keys.local_theta ? all.at("full_attention") : all;
  const JsonNode scaling = is_newer ? newer : theirs.at("rope_scaling");
  if (!scaling.value.is_null() && !scaling.value.is_object()) scaling.fail("an object");
  // If both keys are present, the one that is used depends on the version of transformers.
  const JsonNode older = theirs.at("rope_scaling");
  if (is_newer && !older.value.is_null() && older.value != newer.value)
    older.refuse("it absent, or equal to rope_parameters");
  const auto once = [&](const char* key, const char* outer_key = nullptr) {
    const JsonNode outer = theirs.at(outer_key ? outer_key : key);
    if (!scaling.value.is_object() || !scaling.value.contains(key)) return outer;
    const JsonNode inner = scaling.at(key);
    if (!outer.value.is_null() && outer.value != inner.value) outer.refuse(inner.value.dump());
    return inner;
  };
  rope.theta = once("rope_theta", keys.theta).number(keys.theta_absent);
  if (keys.local_theta) {
    config.local_theta = theirs.at(keys.local_theta).number(1e4);
    if (is_newer && all.value.contains("sliding_attention")) {
      const JsonNode local = all.at("sliding_attention");
      type_of(local).require("default");
      config.local_theta = local.at("rope_theta").number(config.local_theta);
    }
  }
  const JsonNode rotated = once("partial_rotary_factor", keys.share);
  if (!keys.rotated_share) rotated.require(1.0);
  config.rotated_share = rotated.number(keys.rotated_share.value_or(1.0));
  if (!(config.rotated_share > 0.0 && config.rotated_share <= 1.0))
    rotated.fail("a share above 0, up to 1");
  const double elements = static_cast<double>(head_size_of(config)) * config.rotated_share;
  if (config.rotated_share < 1.0 && static_cast<int64_t>(elements) % 2 != 0)
    rotated.refuse(fmt::format("a share that rotates an even number of a head's {} elements",
                               head_size_of(config)));
  if (scaling.value.is_null()) return;
  for (const auto& [key, value] : scaling.value.items())
    if (value.is_object()) scaling.at(key).refuse("no object: one rope for all layers");
  const JsonNode type = type_of(scaling);
  if (type.value.is_null() || type.text() == "default") return;
  if (keys.has_longrope)
    return read_longrope(theirs.at("original_max_position_embeddings"), scaling, config);
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
    rope.attention_factor = attention_factor_of(scaling);
    rope.truncate = scaling.at("truncate").flag(true);
    scaling.at("mscale").require(nullptr);
    scaling.at("mscale_all_dim").require(nullptr);
  } else {
    type.refuse("default, linear, llama3 or yarn");
  }
  rope.factor = required("factor").number(1.0);
}

/// The sliding window; 0: none. Qwen's configs have one, and use it in all, some or no layers.
int64_t window_of(const JsonNode& theirs, WindowKeys keys, int64_t absent, int64_t layers) {
  const JsonNode window = theirs.at("sliding_window"), types = theirs.at("layer_types");
  if (!types.value.is_null()) {
    if (!types.value.is_array() || std::ssize(types.value) != layers)
      types.fail(fmt::format("a list with a type for each of the {} layers", layers));
    for (const json& type : types.value)
      if (type != "full_attention" && type != "sliding_attention")
        types.refuse("full_attention or sliding_attention");
      else if (type == "sliding_attention" && keys == WindowKeys::none)
        types.refuse("full_attention");
  }
  if (keys == WindowKeys::one)
    return theirs.value.contains("sliding_window") ? window.count(0) : absent;
  if (keys == WindowKeys::none) return 0;  // transformers ignores the key
  // layer_types has the kind of attention of each layer. Without it layers from max_window_layers
  // on have the window.
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

/// The value of rope_scaling, with the keys of transformers 4, which transformers 5 also reads.
json rope_scaling_of(const GPTConfig& config) {
  const RopeOptions& rope = config.rope;
  if (rope.scaling == RopeScaling::none) return nullptr;
  if (rope.scaling == RopeScaling::longrope) {
    json longrope = {{"type", "longrope"},  // transformers 4 accepts only these keys
                     {"short_factor", rope.short_factors},
                     {"long_factor", rope.long_factors}};
    if (rope.factor !=
        static_cast<double>(config.positions) / static_cast<double>(rope.original_positions))
      longrope["factor"] = rope.factor;
    if (rope.attention_factor > 0.0) longrope["attention_factor"] = rope.attention_factor;
    return longrope;
  }
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

DecoderKey hf_rope(const RopeKeys& keys) {
  return {"rope: theta", keys.theta,
          [keys](const JsonNode& theirs, GPTConfig& config) { read_rope(keys, theirs, config); },
          [keys](json& written, const GPTConfig& config) {
            written[keys.theta] = config.rope.theta;
            written["rope_scaling"] = rope_scaling_of(config);
            if (keys.rotated_share) written[keys.share] = config.rotated_share;
            if (keys.local_theta)
              written[keys.local_theta] = config.local_theta > 0.0 ? config.local_theta : 1e4;
            if (config.rope.scaling == RopeScaling::longrope)
              written["original_max_position_embeddings"] = config.rope.original_positions;
          }};
}

DecoderKey hf_window_period() {
  const auto has_window = [](const GPTConfig& config, int64_t period, int64_t layer) {
    return config.window > 0 && (period == 0 || (layer + 1) % period != 0);
  };
  return {
      "window", "sliding_window",
      [has_window](const JsonNode& theirs, GPTConfig& config) {
        config.window = theirs.at("sliding_window").count(4096);
        const int64_t layers = config.layers;
        const JsonNode types = theirs.at("layer_types");
        int64_t period = theirs.at("sliding_window_pattern").count(6);
        if (!types.value.is_null()) {
          if (!types.value.is_array() || std::ssize(types.value) != layers)
            types.fail(fmt::format("a list with a type for each of the {} layers", layers));
          const auto first = std::find(types.value.begin(), types.value.end(), "full_attention");
          period = first - types.value.begin() + 1;
          for (int64_t layer = 0; layer < layers; ++layer)
            if (types.value[static_cast<size_t>(layer)] !=
                (has_window(config, period, layer) ? "sliding_attention" : "full_attention"))
              types.refuse("full_attention for every layer of some number, else sliding_attention");
        }
        if (period == 1) config.window = 0;
        config.window_period = period == 1 || period > layers ? 0 : period;
        if (config.window == 0) config.local_theta = 0.0;
      },
      [has_window](json& written, const GPTConfig& config) {
        written["sliding_window"] = config.window > 0 ? config.window : 4096;
        for (int64_t layer = 0; layer < config.layers; ++layer)
          written["layer_types"].push_back(has_window(config, config.window_period, layer)
                                               ? "sliding_attention"
                                               : "full_attention");
      }};
}

DecoderKey hf_window(WindowKeys keys, int64_t absent) {
  return {"window", "sliding_window",
          [=](const JsonNode& theirs, GPTConfig& config) {
            config.window = window_of(theirs, keys, absent, config.layers);
          },
          [keys](json& written, const GPTConfig& config) {
            if (keys == WindowKeys::none) return;
            written["sliding_window"] = config.window > 0 ? json(config.window) : json(nullptr);
            if (keys == WindowKeys::one) return;
            written["use_sliding_window"] = config.window > 0;
            if (config.window == 0) return;
            written["max_window_layers"] = 0;
            written["layer_types"] =
                std::vector<std::string>(static_cast<size_t>(config.layers), "sliding_attention");
          }};
}

}  // namespace zg::models

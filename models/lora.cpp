#include "zerograd/models/lora.h"

#include <cmath>
#include <set>

#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

constexpr const char *a_end = ".lora_A.weight", *b_end = ".lora_B.weight", *weight_end = ".weight";

std::string without(const std::string& name, const char* end) {
  return name.ends_with(end) ? name.substr(0, name.size() - std::string(end).size()) : "";
}

bool names_layer(const std::string& target, const std::string& layer) {
  return layer == target || layer.ends_with("." + target);
}

std::string last_part(const std::string& layer) { return layer.substr(layer.rfind('.') + 1); }

}  // namespace

float lora_scale(const LoraConfig& config) {
  const auto rank = static_cast<float>(config.rank);
  return config.alpha / (config.rank_stabilised ? std::sqrt(rank) : rank);
}

void validate(const LoraConfig& config) {
  if (config.rank == 0) return;
  const auto refuse = [](const char* field, const char* expected, const std::string& got) {
    raise<ConfigError>("lora: {}: expected {}, got {}", field, expected, got);
  };
  if (config.rank < 0) refuse("rank", "1 or more", std::to_string(config.rank));
  if (!(config.alpha > 0.0f) || !std::isfinite(config.alpha))
    refuse("alpha", "a number above 0", fmt::format("{:.6g}", config.alpha));
  if (!(config.dropout >= 0.0f && config.dropout < 1.0f))
    refuse("dropout", "0 or more and below 1", fmt::format("{:.6g}", config.dropout));
  if (config.targets.empty()) refuse("targets", "a name of linear layers, or all-linear", "none");
  for (const std::string& target : config.targets)
    if (target.empty()) refuse("targets", "names of linear layers", "an empty one");
}

bool is_target(const LoraConfig& config, const std::string& layer, bool hidden) {
  for (const std::string& target : config.targets)
    if ((target == all_linear && hidden) || names_layer(target, layer)) return true;
  return false;
}

void check_targets(const LoraConfig& config, const ParameterStore& store) {
  if (!config.enabled()) return;
  std::set<std::string> adapted, names;
  for (const auto& parameter : store.parameters()) {
    if (const std::string layer = lora_layer(parameter->name); !layer.empty())
      adapted.insert(layer);
    else if (parameter->hidden_matrix)
      names.insert(last_part(without(parameter->name, weight_end)));
  }
  for (const std::string& layer : adapted) names.insert(last_part(layer));
  for (const std::string& target : config.targets) {
    bool found = target == all_linear && !adapted.empty();
    for (const std::string& layer : adapted) found = found || names_layer(target, layer);
    if (found) continue;
    std::string there;
    for (const std::string& name : names) there += (there.empty() ? "" : ", ") + name;
    raise<ConfigError>(
        "lora: targets: '{}' names no linear layer of the model; expected some of {}, "
        "or all-linear",
        target, there.empty() ? "none" : there);
  }
}

std::string lora_a_name(const std::string& layer) { return layer + a_end; }
std::string lora_b_name(const std::string& layer) { return layer + b_end; }
std::string lora_layer(const std::string& parameter) {
  const std::string layer = without(parameter, a_end);
  return layer.empty() ? without(parameter, b_end) : layer;
}

}  // namespace zg::models

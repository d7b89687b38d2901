#include <algorithm>
#include <nlohmann/json.hpp>

#include "zerograd/models/gpt/family.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

// adapter_config.json of PEFT.
namespace zg::models {

using nlohmann::json;

namespace {

constexpr const char* peft_config_name = "adapter_config.json";

/// Reads target_modules. PEFT accepts "all-linear" only as the whole value, not in a list.
std::vector<std::string> targets_of(const JsonNode& targets) {
  if (targets.value == all_linear) return {all_linear};
  if (targets.value.is_string()) targets.refuse("a list of names, or \"all-linear\"");
  if (!targets.value.is_array()) targets.fail("a list of names, or \"all-linear\"");
  std::vector<std::string> names;
  for (const JsonNode& target : targets.members()) names.push_back(target.text());
  std::ranges::sort(names);  // PEFT writes a set, in any order
  return names;
}

/// Refuses values of these keys that would describe another model. null is the same as absent.
void require_plain(const JsonNode& config) {
  const auto node = [&](const char* key) { return config.at(key); };
  node("bias").require("none");
  for (const char* key : {"use_dora", "lora_bias", "use_qalora"}) node(key).require(false);
  for (const char* key :
       {"modules_to_save", "layers_to_transform", "layers_pattern", "layer_replication",
        "target_parameters", "trainable_token_indices", "exclude_modules", "use_bdlora",
        "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config",
        "velora_config", "loftq_config", "corda_config", "lora_ga_config", "rank_pattern",
        "alpha_pattern"})
    if (const JsonNode value = node(key); !value.value.is_null() && !value.value.empty())
      value.refuse("it absent, null or empty");
  // With these initial values PEFT subtracts the product B A from the base's weights.
  const JsonNode initial = node("init_lora_weights");
  if (initial.value.is_string())
    for (const char* changes_base : {"pissa", "olora", "corda", "loftq", "lora_ga"})
      if (initial.text().starts_with(changes_base))
        initial.refuse(
            "an adapter of the base as it is; save it with PEFT's "
            "path_initial_model_for_weight_conversion");
}

}  // namespace

std::vector<std::string> peft_targets(Family family) {
  const nn::AttentionNames& names = names_of(family).attention;
  const auto last = [](std::string name) { return name.substr(name.rfind('.') + 1); };
  if (names.qkv) return {last(names.qkv)};
  return {last(names.q), last(names.v)};
}

bool is_peft_folder(const std::string& path) { return path_exists(path + "/" + peft_config_name); }

PeftAdapter peft_adapter(const std::string& text, const std::string& path) {
  const json object = parse_json_object(text, path);
  const JsonNode config{object, path + ": "};
  const JsonNode type = config.at("peft_type");
  if (type.value.is_null()) type.fail("LORA");
  type.require("LORA");
  config.at("task_type").require("CAUSAL_LM");
  require_plain(config);
  const JsonNode rank = config.at("r"), alpha = config.at("lora_alpha"),
                 dropout = config.at("lora_dropout"), base = config.at("base_model_name_or_path");
  PeftAdapter adapter{.lora = {.rank = rank.count(8),
                               .alpha = static_cast<float>(alpha.number(8.0)),
                               .dropout = static_cast<float>(dropout.number(0.0)),
                               .rank_stabilised = config.at("use_rslora").flag(false),
                               .targets = targets_of(config.at("target_modules"))},
                      .base = base.value.is_null() ? "" : base.text()};
  if (adapter.lora.rank < 1) rank.fail("1 or more");
  try {
    validate(adapter.lora);
  } catch (const ConfigError& error) {
    raise<FileError>("{}: {}", path, error.what());
  }
  return adapter;
}

PeftAdapter open_peft(const std::string& folder) {
  const std::string path = folder + "/" + peft_config_name;
  constexpr int64_t max_bytes = int64_t{1} << 20;
  if (!path_exists(path))
    raise<FileError>("{}: has no {}; expected a folder as Hugging Face's PEFT writes one", folder,
                     peft_config_name);
  return peft_adapter(read_text(path, max_bytes), path);
}

}  // namespace zg::models

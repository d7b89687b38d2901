#include "zerograd/models/hugging_face/peft.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "zerograd/models/gpt/gpt.h"
#include "zerograd/models/hugging_face/hf_families.h"
#include "zerograd/models/json_text.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/file_set.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

using nlohmann::json;

namespace {

constexpr const char *config_name = "adapter_config.json",
                     *weights_name = "adapter_model.safetensors",
                     *tensor_prefix = "base_model.model.";

/// The matrices of a model's adapters: name to shape.
std::map<std::string, Shape> matrices_of(const GPTConfig& model, const LoraConfig& lora) {
  ParameterStore store;
  const GPT described(store, model, {}, lora);
  std::map<std::string, Shape> matrices;
  for (const auto& parameter : store.parameters())
    if (!lora_layer(parameter->name).empty()) matrices.emplace(parameter->name, parameter->shape);
  return matrices;
}

/// target_modules. PEFT knows "all-linear" as its only target, and not in a list.
std::vector<std::string> targets_of(const JsonNode& targets) {
  if (targets.value == all_linear) return {all_linear};
  if (targets.value.is_string()) targets.refuse("a list of names, or \"all-linear\"");
  if (!targets.value.is_array()) targets.fail("a list of names, or \"all-linear\"");
  std::vector<std::string> names;
  for (const JsonNode& target : targets.members()) names.push_back(target.text());
  std::sort(names.begin(), names.end());  // PEFT writes a set, in any order
  return names;
}

/// Keys whose other values would make another model. null is the same as absent.
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
  // These initial values take the product B A from the base's weights.
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
  if (family == Family::gpt) return {"c_attn"};
  if (family == Family::bloom) return {"query_key_value"};
  return {"q_proj", "v_proj"};
}

bool is_peft_folder(const std::string& path) { return path_exists(path + "/" + config_name); }

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
    throw FileError(fmt::format("{}: {}", path, error.what()));
  }
  return adapter;
}

PeftAdapter open_peft(const std::string& folder) {
  const std::string path = folder + "/" + config_name;
  constexpr int64_t max_bytes = int64_t{1} << 20;
  if (!path_exists(path))
    throw FileError(fmt::format(
        "{}: has no {}; expected a folder as Hugging Face's PEFT writes one", folder, config_name));
  return peft_adapter(read_text(path, max_bytes), path);
}

WeightSource peft_weights(const std::string& folder, const GPTConfig& model,
                          const LoraConfig& lora) {
  const std::string path = folder + "/" + weights_name;
  const auto reader = std::make_shared<SafetensorsReader>(path);
  WeightSource weights{.path = path, .shapes = matrices_of(model, lora)};
  for (const auto& [name, shape] : weights.shapes) {
    const auto found = reader->entries().find(tensor_prefix + name);
    if (found == reader->entries().end())
      throw FileError(fmt::format("{}: has no '{}{}' {}", path, tensor_prefix, name, shape));
    if (found->second.shape != shape)
      throw FileError(fmt::format("{}: '{}{}' has shape {}; expected {}", path, tensor_prefix, name,
                                  found->second.shape, shape));
  }
  for (const auto& entry : reader->entries()) {
    const std::string& name = entry.first;
    if (!name.starts_with(tensor_prefix) ||
        !weights.shapes.contains(name.substr(std::string(tensor_prefix).size())))
      throw FileError(fmt::format(
          "{}: has '{}', which no adapter of the model has; expected {}LAYER.lora_A.weight and "
          "lora_B.weight of the layers that target_modules names",
          path, name, tensor_prefix));
  }
  weights.read = [reader](const std::string& name) {
    return reader->read_floats(tensor_prefix + name);
  };
  return weights;
}

std::string peft_json(const GPTConfig& model, const PeftAdapter& adapter) {
  const LoraConfig& lora = adapter.lora;
  std::set<std::string> targets(lora.targets.begin(), lora.targets.end());
  if (targets.erase(all_linear) > 0)
    for (const auto& matrix : matrices_of(model, lora)) {
      const std::string layer = lora_layer(matrix.first);
      targets.insert(layer.substr(layer.rfind('.') + 1));
    }
  const json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", adapter.base.empty() ? json(nullptr) : json(adapter.base)},
      {"r", lora.rank},
      {"lora_alpha", hf_number(lora.alpha)},
      {"lora_dropout", hf_number(lora.dropout)},
      {"use_rslora", lora.rank_stabilised},
      {"target_modules", targets},
      {"fan_in_fan_out", model.family == Family::gpt},  // GPT-2's Conv1D is [in, out]
      {"bias", "none"},
      {"modules_to_save", nullptr},
      {"use_dora", false},
      {"rank_pattern", json::object()},
      {"alpha_pattern", json::object()},
      {"layers_to_transform", nullptr},
      {"layers_pattern", nullptr},
      {"init_lora_weights", true},
      {"inference_mode", true},
      {"revision", nullptr}};
  return config.dump(2) + "\n";
}

std::string export_peft(const WeightSource& weights, const GPTConfig& model,
                        const PeftAdapter& adapter, const std::string& directory) {
  validate(adapter.lora);
  const std::map<std::string, Shape> matrices = matrices_of(model, adapter.lora);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, shape] : matrices) {
    const auto found = weights.shapes.find(name);
    if (found == weights.shapes.end() || found->second != shape)
      throw FileError(fmt::format("export: {}: expected '{}' {}, as its settings say", weights.path,
                                  name, shape));
    entries.push_back({tensor_prefix + name, DType::f32, shape});
  }
  const std::string config = peft_json(model, adapter);
  make_directories(directory);
  FileSet files(directory);
  SafetensorsWriter writer(files.add(weights_name), entries, {{"format", "pt"}});
  Checksum hash;
  for (const auto& matrix : matrices) {
    const std::vector<float> values = weights.read(matrix.first);
    hash.update(std::as_bytes(std::span(values)));
    writer.write_floats(values);
  }
  writer.finish();
  write_text(files.add(config_name), config);
  files.finish();
  return hash.hex();
}

}  // namespace zg::models

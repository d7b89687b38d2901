#include "zerograd/models/hugging_face/peft.h"

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "zerograd/models/gpt/family.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/models/hugging_face/hf_keys.h"
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

}  // namespace

WeightSource peft_weights(const std::string& folder, const GPTConfig& model,
                          const LoraConfig& lora) {
  const std::string path = folder + "/" + weights_name;
  if (!path_exists(path)) refuse_pickle(folder, "adapter_model.bin", weights_name);
  const auto reader = std::make_shared<SafetensorsReader>(path);
  WeightSource weights{.path = path, .shapes = matrices_of(model, lora)};
  for (const auto& [name, shape] : weights.shapes) {
    const auto found = reader->entries().find(tensor_prefix + name);
    if (found == reader->entries().end())
      raise<FileError>("{}: has no '{}{}' {}", path, tensor_prefix, name, shape);
    if (reader->floats(found->first).shape != shape)
      raise<FileError>("{}: '{}{}' has shape {}; expected {}", path, tensor_prefix, name,
                       found->second.shape, shape);
    weights.dtypes.emplace(name, found->second.dtype);
  }
  for (const auto& entry : reader->entries()) {
    const std::string& name = entry.first;
    if (!name.starts_with(tensor_prefix) ||
        !weights.shapes.contains(name.substr(std::string(tensor_prefix).size())))
      raise<FileError>(
          "{}: has '{}', which no adapter of the model has; expected {}LAYER.lora_A.weight and "
          "lora_B.weight of the layers that target_modules names",
          path, name, tensor_prefix);
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
      {"fan_in_fan_out", names_of(model.family).conv1d},  // GPT-2's Conv1D is [in, out]
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
      raise<FileError>("export: {}: expected '{}' {}, as its settings say", weights.path, name,
                       shape);
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

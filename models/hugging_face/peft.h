#pragma once

#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/lora.h"

// Adapters in the format of Hugging Face's PEFT: a folder with adapter_config.json and
// adapter_model.safetensors, whose tensors are named base_model.model.LAYER.lora_A.weight.
namespace zg::models {

struct PeftAdapter {
  LoraConfig lora;
  std::string base = {};  ///< base_model_name_or_path: a folder or a name; may be empty
};

/// The layers that PEFT adapts in a model of the family if target_modules is absent: c_attn of
/// GPT-2, query_key_value of BLOOM, q_proj and v_proj of Llama's relatives.
ZG_API std::vector<std::string> peft_targets(Family family);

/// Whether a path is a folder with an adapter_config.json.
ZG_API bool is_peft_folder(const std::string& path);

/// Reads an adapter_config.json. Throws FileError with the key for an invalid value, and
/// Unsupported with the key for a feature that LoraConfig lacks: another peft_type or task_type, a
/// trained bias, modules_to_save, DoRA, ranks or alphas by layer, some layers only, a pattern in
/// place of a list of target_modules, and initial values that change the base (PiSSA, OLoRA, CorDA,
/// LoftQ, LoRA-GA). Errors begin with `path`.
ZG_API PeftAdapter peft_adapter(const std::string& json, const std::string& path);
/// Reads the adapter_config.json in a folder, as peft_adapter() does.
ZG_API PeftAdapter open_peft(const std::string& folder);

/// The matrices in a folder, by this library's names. Throws FileError if they are not those that
/// the model has with these adapters: one is missing, has another shape, or is unknown; and
/// ConfigError if a target names no layer of the model.
ZG_API WeightSource peft_weights(const std::string& folder, const GPTConfig& model,
                                 const LoraConfig& lora);

/// An adapter_config.json that PEFT loads and peft_adapter() reads back.
ZG_API std::string peft_json(const GPTConfig& model, const PeftAdapter& adapter);

/// Writes DIR/adapter_config.json and DIR/adapter_model.safetensors (f32); older files of these
/// names are replaced when both are written. `weights` has the matrices and may have more.
/// Returns the weights_hash() of the matrices. Throws FileError if one is missing or does not fit.
ZG_API std::string export_peft(const WeightSource& weights, const GPTConfig& model,
                               const PeftAdapter& adapter, const std::string& directory);

}  // namespace zg::models

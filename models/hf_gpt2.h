#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/gpt.h"

// GPT-2 as Hugging Face's transformers keeps it (GPT2LMHeadModel): its config.json and the names
// and layout of its tensors. Texts and numbers only; who reads files brings them.
namespace zg::models {

struct HFGPT2 {
  GPTConfig config;         ///< dropout: resid_pdrop
  bool one_dropout = true;  ///< embd_pdrop and attn_pdrop are the same
};

/// Of a config.json, whose absent keys have transformers' defaults. FileError when it is none, with
/// the key; Unsupported, with the key, for what our GPT does not compute: another model_type,
/// activation_function, layer_norm_epsilon or n_inner, cross attention, other scales of attention,
/// quantized weights. `path` is for errors.
ZG_API HFGPT2 hf_gpt2_config(const std::string& json, const std::string& path);
/// What transformers loads; hf_gpt2_config() gives the config back.
ZG_API std::string hf_gpt2_json(const GPTConfig& config);

struct HFTensor {
  std::string name;  ///< ours; theirs too, where some files leave out "transformer."
  Shape shape;       ///< ours
  /// A matrix of Conv1D, which has [in, out] where ours has [out, in].
  bool conv1d = false;

  Shape their_shape() const { return conv1d ? Shape{shape[1], shape[0]} : shape; }
};
/// Every parameter of the model, in byte order of names: a tied head is none.
ZG_API std::vector<HFTensor> hf_gpt2_tensors(const GPTConfig& config);
/// Without "transformer.".
ZG_API std::string hf_short_name(const std::string& name);
/// A mask that some files carry, or the copy of a tied head.
ZG_API bool hf_gpt2_ignores(const std::string& name, const GPTConfig& config);

/// values [rows, columns] as [columns, rows].
ZG_API std::vector<float> transposed(std::span<const float> values, int64_t rows, int64_t columns);

}  // namespace zg::models

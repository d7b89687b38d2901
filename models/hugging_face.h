#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/models/gpt.h"

// Models as Hugging Face's transformers keeps them, GPT2LMHeadModel and BloomForCausalLM: their
// config.json and the names and layout of their tensors. Texts and numbers only; who reads files
// brings them.
namespace zg::models {

/// Ids by which transformers' generate() begins, ends and pads a text. Absent or empty: the model
/// has none.
struct SpecialTokens {
  std::optional<int32_t> bos, pad;
  std::vector<int32_t> eos;  ///< each of them ends a text

  bool operator==(const SpecialTokens&) const = default;
};

struct HFModel {
  GPTConfig config;        ///< dropout: resid_pdrop or hidden_dropout
  SpecialTokens tokens;    ///< those that are in the vocabulary
  std::string dropouts{};  ///< keys of dropouts that are not the same; empty: one for all
};

/// Reads a config.json, whose absent keys have transformers' defaults: GPT-2's without a
/// model_type. FileError when it is none, with the key; Unsupported, with the key, for what our
/// decoder does not compute: another model_type, activation_function, layer_norm_epsilon or
/// n_inner, cross attention, other scales of attention, residuals from behind the norm, pruned
/// heads, quantized weights. `path` is for errors.
ZG_API HFModel hf_config(const std::string& json, const std::string& path);
/// Takes the special tokens that a generation_config.json says in place of those in `model`, as
/// generate() does. FileError.
ZG_API void read_hf_generation(const std::string& json, const std::string& path, HFModel& model);

/// config.json as transformers loads it; hf_config() gives the config back. Unsupported, with the
/// field, for a model that transformers has not: GPT-2 with ALiBi, BLOOM with learned positions.
ZG_API std::string hf_json(const GPTConfig& config, const SpecialTokens& tokens = {});
/// generation_config.json, by which generate() stops.
ZG_API std::string hf_generation_json(const SpecialTokens& tokens);
/// "GPT-2" or "BLOOM".
ZG_API const char* hf_title(Family family);

struct HFTensor {
  std::string name;  ///< ours; theirs too, where some files leave out "transformer."
  Shape shape;       ///< ours
  /// A matrix of GPT-2's Conv1D, which has [in, out] where ours has [out, in].
  bool conv1d = false;

  Shape their_shape() const { return conv1d ? Shape{shape[1], shape[0]} : shape; }
};
/// Every parameter of the model, in byte order of names: a tied head is none.
ZG_API std::vector<HFTensor> hf_tensors(const GPTConfig& config);
/// Without "transformer.".
ZG_API std::string hf_short_name(const std::string& name);
/// A mask that some files carry, or the copy of a tied head.
ZG_API bool hf_ignores(const std::string& name, const GPTConfig& config);

/// values [rows, columns] as [columns, rows].
ZG_API std::vector<float> transposed(std::span<const float> values, int64_t rows, int64_t columns);

}  // namespace zg::models

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/storage/file_set.h"

// Models as Hugging Face's transformers keeps them, GPT2LMHeadModel and BloomForCausalLM: their
// config.json, the names and layout of their tensors, and the folders that hold them.
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

/// A model in a folder as transformers writes one. config.json and generation_config.json are read
/// when this is made, the weights when they are asked for.
///
///   const models::HuggingFaceFolder folder("gpt2");
///   models::GPT gpt(store, folder.model().config);
///   zero::Engine engine(store, device);
///   zero::load_weights(folder.weights(gpt.config()), engine);
class ZG_API HuggingFaceFolder {
 public:
  /// FileError when the folder has no config.json; Unsupported for a model that is none of ours.
  explicit HuggingFaceFolder(std::string path);
  ~HuggingFaceFolder();
  HuggingFaceFolder(HuggingFaceFolder&& other) noexcept;

  const std::string& path() const;
  const HFModel& model() const;
  /// Its tensors by our names, [out, in], positions cut to the model's block size. FileError for
  /// a tensor that is missing or of another shape, and for blocks that the model has not. `note`,
  /// where given, names other tensors that are not used; empty: there are none.
  WeightSource weights(const GPTConfig& model, std::string* note = nullptr) const;

 private:
  std::unique_ptr<struct HuggingFaceFolderState> state_;
};

/// Writes DIR/model.safetensors (f32), config.json and generation_config.json; older files of these
/// names stay until all are written. `add` puts more files beside them, as those of a tokenizer
/// (models/tokenizer/tokenizer_files.h). One rank calls it, and not in a plan. The weights of an
/// engine come from a checkpoint: zero::weights_of(zero::save_checkpoint(directory, engine, info)).
/// Returns Engine::parameter_hash() of these weights. FileError when the weights are not those of
/// the model.
ZG_API std::string export_hugging_face(const WeightSource& weights, const HFModel& model,
                                       const std::string& directory,
                                       const std::function<void(FileSet& files)>& add = {});

}  // namespace zg::models

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

// Models in the format of Hugging Face's transformers, of the classes that models/gpt/family.h
// names: their config.json, the names and layout of their tensors, and folders with these files.
namespace zg::models {

/// Ids with which transformers' generate() begins, ends and pads a text. Absent or empty: the model
/// has none.
struct SpecialTokens {
  std::optional<int32_t> bos, pad;
  std::vector<int32_t> eos;  ///< each of them ends a text

  bool operator==(const SpecialTokens&) const = default;
};

struct ZG_API HFModel {
  GPTConfig config;               ///< dropout: resid_pdrop or hidden_dropout
  SpecialTokens tokens;           ///< those that are in the vocabulary
  std::string generation_json{};  ///< the text of generation_config.json; empty: none
  /// Names of dropout keys with different values; empty: all dropouts are equal.
  std::string dropouts{};
};

/// Reads a config.json. It is refused if two keys of one setting have different values, or if
/// versions of transformers read a key differently. Absent keys have transformers' defaults; an
/// absent model_type means GPT-2. Throws FileError with the key if a value is invalid, or if a key
/// of rope_scaling is absent that transformers requires. Throws Unsupported with the key for a
/// feature
/// that GPTConfig does not have: another model_type or activation_function, another n_inner of a
/// BLOOM, cross attention, other scales of attention, residual connections after the norm, pruned
/// heads, quantized weights. Errors begin with `path`.
ZG_API HFModel hf_config(const std::string& json, const std::string& path);
/// Replaces the special tokens in `model` by those of a generation_config.json, as transformers'
/// generate() does. Throws FileError.
ZG_API void read_hf_generation(const std::string& json, const std::string& path, HFModel& model);

/// Returns a config.json that transformers loads and hf_config() reads back as the same model.
/// `dtype` is that of the weights, f32, bf16 or f16. Throws Unsupported, with the field, for a
/// model that transformers does not have: GPT-2 with ALiBi or a sliding window, BLOOM with learned
/// positions.
ZG_API std::string hf_json(const GPTConfig& config, const SpecialTokens& tokens = {},
                           DType dtype = DType::f32);
/// Returns a generation_config.json, which tells generate() where a text ends. `read`: the text of
/// an older file, whose other members, such as temperature, are kept.
ZG_API std::string hf_generation_json(const SpecialTokens& tokens, const std::string& read = {});
/// "GPT-2", "BLOOM", "Llama", ...
ZG_API const char* hf_title(Family family);

struct HFTensor {
  std::string
      name;  ///< the parameter's name in this library; some files omit "transformer." or "model."
  Shape shape;  ///< the parameter's shape in this library
  /// True: a matrix of GPT-2's Conv1D, which is [in, out] in the file and [out, in] in this
  /// library.
  bool conv1d = false;

  Shape their_shape() const { return conv1d ? Shape{shape[1], shape[0]} : shape; }
};
/// Every parameter of the model, in byte order of names. A tied head is not listed.
ZG_API std::vector<HFTensor> hf_tensors(const GPTConfig& config);
/// Throws FileError unless the weights have every tensor, in its shape.
ZG_API void require_weights(const WeightSource& weights, const std::vector<HFTensor>& tensors);
/// True for tensors of a file that are not parameters: attention masks and angles of rotary
/// positions.
ZG_API bool hf_ignores(const std::string& name);

/// The transpose of a matrix: values [rows, columns] as [columns, rows].
ZG_API std::vector<float> transposed(std::span<const float> values, int64_t rows, int64_t columns);

template <class Model>
struct HFFolderState;

/// A model in a folder written by transformers. The constructor reads config.json and
/// generation_config.json; weights are read on request.
///
///   const models::HuggingFaceFolder folder("gpt2");
///   models::GPT gpt(store, folder.model().config);
///   zero::Engine engine(store, device);
///   zero::load_weights(folder.weights(gpt.config()), engine);
template <class Model>
class ZG_API HFFolder {
 public:
  /// Throws FileError if the folder has no config.json. Throws what hf_config() throws, or
  /// hf_seq2seq() for an encoder-decoder.
  explicit HFFolder(std::string path);
  ~HFFolder();
  HFFolder(HFFolder&& other) noexcept;

  const std::string& path() const;
  const Model& model() const;
  /// The folder's tensors with the names and layout of this library. Position tables are cut to the
  /// positions of `model`; final_logits_bias of an encoder-decoder is 0 where the folder has none.
  /// Throws FileError for a missing tensor, a wrong shape, a block or a block's tensor that `model`
  /// does not have, or tensors with different values that config.json ties: a head and the
  /// embedding, or copies of the token table. One of those suffices. `note` (optional) is set to a
  /// list of tensors that are not used, or to "".
  WeightSource weights(const decltype(Model::config)& model, std::string* note = nullptr) const;

 private:
  std::unique_ptr<HFFolderState<Model>> state_;
};
using HuggingFaceFolder = HFFolder<HFModel>;

/// Writes DIR/model.safetensors of this dtype (f32, or rounded to bf16 or f16), config.json and
/// generation_config.json; older files of these names are replaced when all are written. `add` may
/// add files to the set, for example a tokenizer's (models/tokenizer/tokenizer_files.h). Only one
/// rank calls it, and not in a plan. To export an engine's weights, save a checkpoint:
/// zero::weights_of(zero::save_checkpoint(directory, engine, info)). Returns
/// Engine::parameter_hash() of the written weights. Throws FileError if the weights do not fit the
/// model or the dtype.
ZG_API std::string export_hugging_face(const WeightSource& weights, const HFModel& model,
                                       const std::string& directory,
                                       const std::function<void(FileSet& files)>& add = {},
                                       DType dtype = DType::f32);

}  // namespace zg::models

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "zerograd/models/gpt/family.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hf_files.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/seq2seq/seq2seq.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

std::vector<HFTensor> hf_tensors(const GPTConfig& config) {
  ParameterStore store;
  const GPT model(store, config);
  const DecoderNames& names = names_of(config.family);
  std::vector<HFTensor> tensors;
  for (const auto& [name, parameter] : store.by_name()) {
    const Shape& shape = parameter->shape;
    tensors.push_back(
        {name, shape, names.conv1d && name.starts_with(names.blocks) && shape.rank() == 2});
  }
  return tensors;
}

bool hf_ignores(const std::string& name) {
  // transformers before 4.32 stored masks, and the angles of rotary positions.
  const char* stored[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
  return std::ranges::any_of(stored, [&](const char* end) { return name.ends_with(end); });
}

std::vector<float> transposed(std::span<const float> values, int64_t rows, int64_t columns) {
  // Works in tiles that fit in the cache; row by row, a large matrix would cause a cache miss for
  // each element.
  constexpr int64_t tile = 32;
  std::vector<float> result(values.size());
  for (int64_t i = 0; i < rows; i += tile)
    for (int64_t j = 0; j < columns; j += tile)
      for (int64_t r = i; r < std::min(rows, i + tile); ++r)
        for (int64_t c = j; c < std::min(columns, j + tile); ++c)
          result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
  return result;
}

namespace {

/// Compares all fields except block_size and dropout, which a program can change.
bool is_same_model(const GPTConfig& a, GPTConfig b) {
  b.block_size = a.block_size;
  b.dropout = a.dropout;
  return a == b;
}

}  // namespace

template <>
WeightSource HuggingFaceFolder::weights(const GPTConfig& model, std::string* note) const {
  const std::string& path = state_->path;
  GPTConfig whole = model;
  whole.block_size = state_->model.config.block_size;
  const auto folder = std::make_shared<SafetensorsFolder>(path);
  // Without this check the weights could belong to another model, which a process has exported
  // there meanwhile.
  if (!state_->config.has_its_path() || !is_same_model(state_->model.config, model))
    throw FileError(path + ": the files were replaced while they were read; try again");
  require_tensors_of_blocks(*folder, model.layers);
  HFRequest request{.tensors = hf_tensors(whole), .prefix = name_prefix(model.family)};
  const DecoderNames& names = names_of(model.family);
  if (model.tied)
    request.tied = {names.tokens + std::string(".weight"), names.head + std::string(".weight")};
  if (const char* table = names.positions)
    request.shortened.emplace(std::string(table) + ".weight", Shape{model.block_size, model.width});
  WeightSource weights = hf_weights(folder, request);
  const std::string unused = unused_hf_tensors(
      *folder, request,
      {.ignored = hf_ignores,
       .blocks = {request.short_name(names.blocks)},
       .model = fmt::format("{} of {} blocks", hf_title(model.family), model.layers)});
  if (note) *note = unused;
  return weights;
}

std::string export_hugging_face(const WeightSource& weights, const HFModel& model,
                                const std::string& directory,
                                const std::function<void(FileSet& files)>& add, DType dtype) {
  const std::vector<HFTensor> tensors = hf_tensors(model.config);
  require_weights(weights, tensors);
  // Throws for models that transformers does not have, before a file is written.
  const std::string config = hf_json(model.config, model.tokens, dtype);
  return write_hf_folder(weights, tensors, config,
                         hf_generation_json(model.tokens, model.generation_json), directory, add,
                         dtype);
}

// Folders of encoder-decoder models; hf_seq2seq.cpp has their config.json.

std::vector<HFTensor> hf_tensors(const Seq2SeqConfig& config) {
  ParameterStore store;
  const Seq2Seq model(store, config);
  std::vector<HFTensor> tensors;
  for (const auto& [name, parameter] : store.by_name()) tensors.push_back({name, parameter->shape});
  return tensors;
}

template <>
WeightSource Seq2SeqFolder::weights(const Seq2SeqConfig& model, std::string* note) const {
  const std::string& path = state_->path;
  const Seq2SeqConfig& theirs = state_->model.config;
  if (model.positions > theirs.positions)
    raise<FileError>("{}: has {} positions; the model has {}, expected at most as many", path,
                     theirs.positions, model.positions);
  Seq2SeqConfig whole = model;
  whole.positions = theirs.positions;
  const auto folder = std::make_shared<SafetensorsFolder>(path);
  // Without this check the weights could belong to another model, which a process has exported
  // there meanwhile.
  if (!state_->config.has_its_path())
    throw FileError(path + ": the files were replaced while they were read; try again");
  require_tensors_of_blocks(*folder, model.encoder_layers + model.decoder_layers);
  HFRequest request{.tensors = hf_tensors(whole),
                    .optional = {"final_logits_bias"},
                    .tied = {"model.shared.weight", "model.encoder.embed_tokens.weight",
                             "model.decoder.embed_tokens.weight", "lm_head.weight"},
                    .prefix = "model."};
  for (const char* table :
       {"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"})
    request.shortened.emplace(table, Shape{model.positions + model.position_offset, model.width});
  WeightSource weights = hf_weights(folder, request);
  const std::string unused = unused_hf_tensors(
      *folder, request,
      {.ignored =
           [&](const std::string& name) {
             return name == "encoder.version" || name == "decoder.version";
           },
       .blocks = {"encoder.layers.", "decoder.layers."},
       .model = fmt::format("{} of {} encoder and {} decoder layers", name_of(model.family),
                            model.encoder_layers, model.decoder_layers)});
  if (note) *note = unused;
  return weights;
}

std::string export_hugging_face(const WeightSource& weights, const HFSeq2Seq& model,
                                const std::string& directory,
                                const std::function<void(FileSet& files)>& add, DType dtype) {
  const std::vector<HFTensor> tensors = hf_tensors(model.config);
  require_weights(weights, tensors);
  // Throws for models that transformers does not have, before a file is written.
  const std::string config = hf_json(model.config, dtype);
  return write_hf_folder(weights, tensors, config,
                         hf_generation_json(model.config, model.generation, model.generation_json),
                         directory, add, dtype);
}

template <>
HuggingFaceFolder::HFFolder(std::string path)
    : state_(std::make_unique<HFFolderState<HFModel>>(std::move(path), hf_config)) {}
template <>
Seq2SeqFolder::HFFolder(std::string path)
    : state_(std::make_unique<HFFolderState<HFSeq2Seq>>(std::move(path), hf_seq2seq)) {}
template <class Model>
HFFolder<Model>::~HFFolder() = default;
template <class Model>
HFFolder<Model>::HFFolder(HFFolder&& other) noexcept = default;
template <class Model>
const std::string& HFFolder<Model>::path() const {
  return state_->path;
}
template <class Model>
const Model& HFFolder<Model>::model() const {
  return state_->model;
}
template class HFFolder<HFModel>;
template class HFFolder<HFSeq2Seq>;

}  // namespace zg::models

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "zerograd/models/gpt/family.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hf_files.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/error.h"
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

struct HuggingFaceFolderState : HFFolderState<HFModel> {
  using HFFolderState::HFFolderState;
};

HuggingFaceFolder::HuggingFaceFolder(std::string path)
    : state_(std::make_unique<HuggingFaceFolderState>(std::move(path), hf_config)) {}
HuggingFaceFolder::~HuggingFaceFolder() = default;
HuggingFaceFolder::HuggingFaceFolder(HuggingFaceFolder&& other) noexcept = default;

const std::string& HuggingFaceFolder::path() const { return state_->path; }
const HFModel& HuggingFaceFolder::model() const { return state_->model; }

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

}  // namespace zg::models

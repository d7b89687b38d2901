#include <utility>

#include "zerograd/models/hugging_face/hf_files.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/seq2seq/seq2seq.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

// Folders of encoder-decoder models; hf_seq2seq.cpp has their config.json.
namespace zg::models {

std::vector<HFTensor> hf_tensors(const Seq2SeqConfig& config) {
  ParameterStore store;
  const Seq2Seq model(store, config);
  std::vector<HFTensor> tensors;
  for (const auto& [name, parameter] : store.by_name()) tensors.push_back({name, parameter->shape});
  return tensors;
}

struct Seq2SeqFolderState : HFFolderState<HFSeq2Seq> {
  using HFFolderState::HFFolderState;
};

Seq2SeqFolder::Seq2SeqFolder(std::string path)
    : state_(std::make_unique<Seq2SeqFolderState>(std::move(path), hf_seq2seq)) {}
Seq2SeqFolder::~Seq2SeqFolder() = default;
Seq2SeqFolder::Seq2SeqFolder(Seq2SeqFolder&& other) noexcept = default;

const std::string& Seq2SeqFolder::path() const { return state_->path; }
const HFSeq2Seq& Seq2SeqFolder::model() const { return state_->model; }

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

}  // namespace zg::models

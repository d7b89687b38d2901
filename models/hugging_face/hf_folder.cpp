#include "zerograd/models/hugging_face/hugging_face.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "zerograd/models/gpt/family.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/file_set.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

constexpr const char *hf_config_name = "config.json",
                     *hf_generation_name = "generation_config.json";

/// FileError if there is no such folder or file.
File open_hf_config(const std::string& directory) {
  const std::string path = directory + "/" + hf_config_name;
  if (path_exists(path)) return File::open(path);
  raise<FileError>("{}{}; expected a folder as Hugging Face's libraries write one", directory,
                   !path_exists(directory)    ? ": there is no such folder"
                   : !is_directory(directory) ? " is not a folder"
                                              : " has no " + std::string(hf_config_name));
}

/// FileError above 1 MiB.
std::string read_hf_text(const File& file) {
  constexpr int64_t config_bytes = 1 << 20;
  return read_text(file, config_bytes);
}

/// Tensors of a folder that become the parameters of a model.
struct HFRequest {
  std::vector<HFTensor> tensors;  ///< as the folder should have them
  /// Shapes of the parameters that have only the first rows of their tensors.
  std::map<std::string, Shape> shortened = {};
  std::set<std::string> optional = {};  ///< tensors that are zeros where the folder has none
  /// Names of the tensors that config.json ties; the first is the parameter's name. The folder must
  /// have one of them, or several with equal values. (If the values differ, transformers 4 uses the
  /// first tensor for all, and transformers 5 does not tie them.)
  std::vector<std::string> tied = {};
  /// A prefix that the folder's names may lack.
  std::string prefix = {};

  /// A name without the prefix.
  std::string short_name(const std::string& name) const {
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  }
};

/// The tensors of a folder. `is_same`: its model is the one whose weights are read. Throws
/// FileError if the model has more blocks than the folder has tensors. Without this check, a list
/// of the blocks' parameters could take all memory.
std::shared_ptr<const SafetensorsFolder> open_tensors(const std::string& path, const File& config,
                                                      bool is_same, int64_t blocks) {
  auto folder = std::make_shared<const SafetensorsFolder>(path);
  // Without this check the weights could belong to another model, which a process has exported
  // there meanwhile.
  if (!config.has_its_path() || !is_same)
    throw FileError(path + ": the files were replaced while they were read; try again");
  const auto tensors = std::ssize(folder->names());
  if (blocks > tensors)
    raise<FileError>(
        "{}: config.json has {} blocks; expected at most one for each of the {} tensors", path,
        blocks, tensors);
  return folder;
}

/// Maps the short name of each tensor to its name in the folder.
std::map<std::string, std::string> short_names(const SafetensorsFolder& folder,
                                               const HFRequest& request) {
  std::map<std::string, std::string> names;
  for (const std::string& name : folder.names())
    if (name.starts_with(request.prefix))
      names.insert_or_assign(request.short_name(name), name);
    else
      names.emplace(name, name);
  return names;
}

/// Throws FileError if two tensors of a folder, which config.json ties, have different values.
void require_equal_tensors(const SafetensorsFolder& folder, const std::string& head,
                           const std::string& tokens) {
  const auto refuse = [&] {
    raise<FileError>(
        "{}: '{}' has other values than '{}', to which config.json ties it; expected "
        "equal values; try \"tie_word_embeddings\": false, which decoders have",
        folder.path(), head, tokens);
  };
  if (folder.shape(head) != folder.shape(tokens)) refuse();
  constexpr int64_t elements_at_once = 1 << 20;
  const int64_t elements = folder.shape(tokens).numel();
  for (int64_t begin = 0; begin < elements; begin += elements_at_once) {
    const int64_t count = std::min(elements_at_once, elements - begin);
    if (folder.read_floats(head, begin, count) != folder.read_floats(tokens, begin, count))
      refuse();
  }
}

[[noreturn]] void refuse_absent(const SafetensorsFolder& folder, const HFRequest& request,
                                const HFTensor& tensor) {
  std::string why;
  for (const auto& [name, file] : folder.absent())
    if (request.short_name(name) == request.short_name(tensor.name))
      why = fmt::format("; the index says that {} has it", file);
  if (tensor.name == "lm_head.weight" && why.empty())
    why =
        "; a folder of the base model alone has no head; expected that of the causal language "
        "model, or \"tie_word_embeddings\": true";
  raise<FileError>("{}: has no '{}' {}{}", folder.path(), tensor.name, tensor.their_shape(), why);
}

/// A parameter and its tensor in a folder.
struct FoundTensor {
  HFTensor tensor;
  std::string name;   ///< in the folder; empty: the tensor is absent and read as zeros
  int64_t numel = 0;  ///< of the parameter
};

/// Tensors of a folder that are not parameters.
struct HFUnused {
  std::function<bool(const std::string& short_name)> ignored;  ///< true: not in the note
  std::vector<std::string> blocks;  ///< short names of parameters of blocks begin with one of these
  std::string model;                ///< for errors: "GPT-2 of 2 blocks"
};

/// A note that lists the tensors that the model does not use; empty if there are none. Throws
/// FileError if the folder has more blocks than the model.
std::string unused_hf_tensors(const SafetensorsFolder& folder, const HFRequest& request,
                              const HFUnused& unused) {
  std::set<std::string> used;
  for (const HFTensor& tensor : request.tensors) used.insert(request.short_name(tensor.name));
  for (const std::string& name : request.tied) used.insert(request.short_name(name));
  std::string first;
  int64_t count = 0;
  for (const std::string& name : folder.names()) {
    const std::string own = request.short_name(name);
    if (used.contains(own) || unused.ignored(own)) continue;
    for (const std::string& block : unused.blocks)
      if (own.starts_with(block))
        raise<FileError>("{}: unexpected tensor '{}' for a {} (config.json)", folder.path(), name,
                         unused.model);
    if (count++ == 0) first = name;
  }
  std::string note;
  if (count > 0)
    note = fmt::format("{}: {} tensors are not used, '{}' for one", folder.path(), count, first);
  if (const auto& left_out = folder.unlisted(); !left_out.empty())
    note += fmt::format(
        "{}{}: {} tensors are not used, because the index does not list them in their files, '{}' "
        "for one",
        note.empty() ? "" : "; ", folder.path(), left_out.size(), left_out.front());
  return note;
}

/// The parameters' values, read on request. FileError for a missing tensor, another shape, a dtype
/// that is not floating-point, or tied tensors with different values. `note`: unused_hf_tensors().
WeightSource hf_weights(const std::shared_ptr<const SafetensorsFolder>& folder,
                        const HFRequest& request, const HFUnused& unused, std::string* note) {
  const std::map<std::string, std::string> theirs = short_names(*folder, request);
  WeightSource weights = {.path = folder->path()};
  std::map<std::string, FoundTensor> found;
  for (const HFTensor& tensor : request.tensors) {
    const auto cut = request.shortened.find(tensor.name);
    const Shape own = cut == request.shortened.end() ? tensor.shape : cut->second;
    weights.shapes.emplace(tensor.name, own);
    FoundTensor& entry =
        found.emplace(tensor.name, FoundTensor{tensor, "", own.numel()}).first->second;
    const bool is_tied = !request.tied.empty() && request.tied.front() == tensor.name;
    for (const std::string& name : is_tied ? request.tied : std::vector{tensor.name})
      if (const auto place = theirs.find(request.short_name(name)); place == theirs.end())
        continue;
      else if (entry.name.empty())
        entry.name = place->second;
      else
        require_equal_tensors(*folder, place->second, entry.name);
    if (entry.name.empty() && request.optional.contains(tensor.name)) continue;
    if (entry.name.empty()) refuse_absent(*folder, request, tensor);
    if (const Shape& shape = folder->shape(entry.name); shape != tensor.their_shape())
      raise<FileError>("{}: '{}' has shape {}; expected {}", folder->path(), entry.name, shape,
                       tensor.their_shape());
    weights.dtypes.emplace(tensor.name, folder->dtype(entry.name));
  }
  weights.read = [folder, found](const std::string& name) {
    const auto& [tensor, file_name, numel] = found.at(name);
    if (file_name.empty()) return std::vector<float>(static_cast<size_t>(numel));
    if (!tensor.conv1d) return folder->read_floats(file_name, 0, numel);
    return transposed(folder->read_floats(file_name), tensor.shape[1], tensor.shape[0]);
  };
  weights.read_range = [folder, found](const std::string& name, int64_t begin,
                                       int64_t count) -> std::optional<std::vector<float>> {
    const auto& [tensor, file_name, numel] = found.at(name);
    if (tensor.conv1d) return std::nullopt;  // a transposed matrix cannot be read in ranges
    if (file_name.empty()) return std::vector<float>(static_cast<size_t>(count));
    return folder->read_floats(file_name, begin, count);
  };
  const std::string others = unused_hf_tensors(*folder, request, unused);
  if (note) *note = others;
  return weights;
}

/// Writes DIR/model.safetensors with these tensors, config.json and generation_config.json, and
/// returns the hash of the weights, as export_hugging_face() does.
std::string write_hf_folder(const WeightSource& weights, const std::vector<HFTensor>& tensors,
                            const std::string& config, const std::string& generation,
                            const std::string& directory,
                            const std::function<void(FileSet& files)>& add, DType dtype) {
  std::vector<SafetensorsWriter::Entry> entries;
  entries.reserve(tensors.size());
  for (const HFTensor& tensor : tensors)
    entries.push_back({tensor.name, dtype, tensor.their_shape()});
  make_directories(directory);
  FileSet files(directory);
  if (add) add(files);
  // transformers does not open files without this metadata.
  SafetensorsWriter writer(files.add("model.safetensors"), entries, {{"format", "pt"}});
  Checksum hash;
  for (const HFTensor& tensor : tensors) {
    std::vector<float> values = weights.read(tensor.name);
    writer.write_floats(tensor.conv1d ? transposed(values, tensor.shape[0], tensor.shape[1])
                                      : values);
    for (float& value : values)
      value = dtype == DType::bf16  ? static_cast<float>(bf16(value))
              : dtype == DType::f16 ? static_cast<float>(f16(value))
                                    : value;
    hash.update(std::as_bytes(std::span(values)));
  }
  writer.finish();
  write_text(files.add(hf_generation_name), generation);
  write_text(files.add(hf_config_name), config);
  files.finish();
  return hash.hex();
}

/// Compares all fields except block_size and dropout, which a program can change.
bool is_same_model(const GPTConfig& a, GPTConfig b) {
  b.block_size = a.block_size;
  b.dropout = a.dropout;
  return a == b;
}

}  // namespace

/// A folder's open config.json, and the model that it and generation_config.json describe. `read`
/// parses the text of a config.json.
template <class Model>
struct HFFolderState {
  HFFolderState(std::string folder, Model (*read)(const std::string& text, const std::string& path))
      : path(std::move(folder)),
        config(open_hf_config(path)),
        model(read(read_hf_text(config), config.path())) {
    const std::string generation = path + "/" + hf_generation_name;
    if (path_exists(generation))
      read_hf_generation(read_hf_text(File::open(generation)), generation, model);
  }
  const std::string path;
  const File config;
  Model model;
};

void require_weights(const WeightSource& weights, const std::vector<HFTensor>& tensors) {
  for (const HFTensor& tensor : tensors) {
    const auto found = weights.shapes.find(tensor.name);
    if (found == weights.shapes.end() || found->second != tensor.shape)
      raise<FileError>("export: {}: expected '{}' {}, as its settings say", weights.path,
                       tensor.name, tensor.shape);
  }
}

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

template <>
WeightSource HuggingFaceFolder::weights(const GPTConfig& model, std::string* note) const {
  GPTConfig whole = model;
  whole.block_size = state_->model.config.block_size;
  const auto folder = open_tensors(state_->path, state_->config,
                                   is_same_model(state_->model.config, model), model.layers);
  HFRequest request{.tensors = hf_tensors(whole), .prefix = name_prefix(model.family)};
  const DecoderNames& names = names_of(model.family);
  if (model.tied)
    request.tied = {names.tokens + std::string(".weight"), names.head + std::string(".weight")};
  if (const char* table = names.positions)
    request.shortened.emplace(std::string(table) + ".weight", Shape{model.block_size, model.width});
  return hf_weights(folder, request,
                    {.ignored = hf_ignores,
                     .blocks = {request.short_name(names.blocks)},
                     .model = fmt::format("{} of {} blocks", hf_title(model.family), model.layers)},
                    note);
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

template <>
WeightSource Seq2SeqFolder::weights(const Seq2SeqConfig& model, std::string* note) const {
  const Seq2SeqConfig& theirs = state_->model.config;
  if (model.positions > theirs.positions)
    raise<FileError>("{}: has {} positions; the model has {}, expected at most as many",
                     state_->path, theirs.positions, model.positions);
  Seq2SeqConfig whole = model;
  whole.positions = theirs.positions;
  const auto folder =
      open_tensors(state_->path, state_->config, true, model.encoder_layers + model.decoder_layers);
  HFRequest request{.tensors = hf_tensors(whole),
                    .optional = {"final_logits_bias"},
                    .tied = {"model.shared.weight", "model.encoder.embed_tokens.weight",
                             "model.decoder.embed_tokens.weight", "lm_head.weight"},
                    .prefix = "model."};
  for (const char* table :
       {"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"})
    request.shortened.emplace(table, Shape{model.positions + model.position_offset, model.width});
  return hf_weights(
      folder, request,
      {.ignored =
           [&](const std::string& name) {
             return name == "encoder.version" || name == "decoder.version";
           },
       .blocks = {"encoder.layers.", "decoder.layers."},
       .model = fmt::format("{} of {} encoder and {} decoder layers", name_of(model.family),
                            model.encoder_layers, model.decoder_layers)},
      note);
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

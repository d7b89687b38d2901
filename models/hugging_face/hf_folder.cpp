#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/file_set.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

constexpr const char* prefix = "transformer.";
constexpr const char* conv1d_weights[] = {".attn.c_attn.weight", ".attn.c_proj.weight",
                                          ".mlp.c_fc.weight", ".mlp.c_proj.weight"};
constexpr const char* masks[] = {".attn.bias", ".attn.masked_bias"};

bool ends_with_any(const std::string& name, std::span<const char* const> ends) {
  for (const char* end : ends)
    if (name.ends_with(end)) return true;
  return false;
}

}  // namespace

std::vector<HFTensor> hf_tensors(const GPTConfig& config) {
  ParameterStore store;
  const GPT model(store, config);
  std::map<std::string, Shape> by_name;
  for (const auto& parameter : store.parameters())
    by_name.emplace(parameter->name, parameter->shape);
  std::vector<HFTensor> tensors;
  tensors.reserve(by_name.size());
  for (const auto& [name, shape] : by_name)
    tensors.push_back(
        {name, shape, config.family == Family::gpt && ends_with_any(name, conv1d_weights)});
  return tensors;
}

std::string hf_short_name(const std::string& name) {
  return name.starts_with(prefix) ? name.substr(std::string(prefix).size()) : name;
}

bool hf_ignores(const std::string& name, const GPTConfig& config) {
  return (config.family == Family::gpt && ends_with_any(name, masks)) ||
         (config.tied && name == "lm_head.weight");
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

// Folders in Hugging Face's format.
constexpr const char *config_name = "config.json", *generation_name = "generation_config.json";
constexpr int64_t config_bytes = 1 << 20;

File open_config(const std::string& directory) {
  const std::string path = directory + "/" + config_name;
  if (path_exists(path)) return File::open(path);
  throw FileError(fmt::format("{}{}; expected a folder as Hugging Face's libraries write one",
                              directory,
                              !path_exists(directory)    ? ": there is no such folder"
                              : !is_directory(directory) ? " is no folder"
                                                         : " has no " + std::string(config_name)));
}

HFModel read_model(const File& config, const std::string& directory) {
  HFModel model = hf_config(read_text(config, config_bytes), config.path());
  const std::string generation = directory + "/" + generation_name;
  if (path_exists(generation))
    read_hf_generation(read_text(generation, config_bytes), generation, model);
  return model;
}

/// Compares all but the longest sequence and the dropout, which a program can change.
bool is_same_model(const GPTConfig& a, GPTConfig b) {
  b.block_size = a.block_size;
  b.dropout = a.dropout;
  return a == b;
}

/// A note that lists the tensors that the model does not use; empty if there are none. Throws
/// FileError if the folder has more blocks than the model.
std::string unused_in(const SafetensorsFolder& folder, const GPTConfig& model,
                      const std::map<std::string, std::string>& used) {
  std::string unused;
  int64_t count = 0;
  for (const std::string& name : folder.names()) {
    const std::string own = hf_short_name(name);
    if (used.contains(own) || hf_ignores(own, model)) continue;
    if (own.starts_with(hf_short_name(names_of(model.family).blocks)))
      throw FileError(
          fmt::format("{}: has '{}', which a {} of {} blocks has not, as its config.json says",
                      folder.path(), name, hf_title(model.family), model.layers));
    if (count++ == 0) unused = name;
  }
  if (count == 0) return "";
  return fmt::format("{}: {} tensors are not used, '{}' for one", folder.path(), count, unused);
}

/// Throws FileError if the folder has a head whose values are not those of the embedding that
/// config.json ties it to. transformers 4 uses the embedding for such a folder, and 5 the head.
void check_tied_head(const SafetensorsFolder& folder, const GPTConfig& model,
                     const std::map<std::string, std::string>& names) {
  const std::string table = hf_short_name(names_of(model.family).tokens) + ".weight";
  const auto head = names.find("lm_head.weight"), tokens = names.find(table);
  if (!model.tied || head == names.end() || tokens == names.end()) return;
  const auto refuse = [&] {
    throw FileError(
        fmt::format("{}: '{}' has other values than '{}', to which config.json ties it; expected "
                    "equal values; try \"tie_word_embeddings\": false",
                    folder.path(), head->second, tokens->second));
  };
  if (folder.shape(head->second) != folder.shape(tokens->second)) refuse();
  constexpr int64_t elements_at_once = 1 << 20;
  const int64_t elements = folder.shape(tokens->second).numel();
  for (int64_t begin = 0; begin < elements; begin += elements_at_once) {
    const int64_t count = std::min(elements_at_once, elements - begin);
    if (folder.read_floats(head->second, begin, count) !=
        folder.read_floats(tokens->second, begin, count))
      refuse();
  }
}

/// Maps short names to those of the file.
std::map<std::string, std::string> names_of(const SafetensorsFolder& folder) {
  std::map<std::string, std::string> names;
  for (const std::string& name : folder.names()) names.emplace(hf_short_name(name), name);
  return names;
}

}  // namespace

struct HuggingFaceFolderState {
  explicit HuggingFaceFolderState(std::string folder)
      : path(std::move(folder)), config(open_config(path)), model(read_model(config, path)) {}

  const std::string path;
  const File config;
  const HFModel model;
};

HuggingFaceFolder::HuggingFaceFolder(std::string path)
    : state_(std::make_unique<HuggingFaceFolderState>(std::move(path))) {}
HuggingFaceFolder::~HuggingFaceFolder() = default;
HuggingFaceFolder::HuggingFaceFolder(HuggingFaceFolder&& other) noexcept = default;

const std::string& HuggingFaceFolder::path() const { return state_->path; }
const HFModel& HuggingFaceFolder::model() const { return state_->model; }

WeightSource HuggingFaceFolder::weights(const GPTConfig& model, std::string* note) const {
  const std::string& path = state_->path;
  GPTConfig whole = model;
  whole.block_size = state_->model.config.block_size;
  const char* table = names_of(model.family).positions;
  const std::string positions = table ? std::string(table) + ".weight" : "";
  const auto folder = std::make_shared<SafetensorsFolder>(path);
  // Otherwise the weights could belong to another model that a process has exported there
  // meanwhile.
  if (!state_->config.has_its_path() || !is_same_model(state_->model.config, model))
    throw FileError(path + ": the files were replaced while they were read; try again");
  const std::map<std::string, std::string> theirs = names_of(*folder);
  std::map<std::string, std::string> used;
  std::map<std::string, HFTensor> tensors;
  WeightSource weights = {.path = path};
  for (const HFTensor& tensor : hf_tensors(whole)) {
    const std::string own = hf_short_name(tensor.name);
    const auto found = theirs.find(own);
    if (found == theirs.end())
      throw FileError(fmt::format("{}: has no '{}' {}", path, tensor.name, tensor.their_shape()));
    if (const Shape& shape = folder->shape(found->second); shape != tensor.their_shape())
      throw FileError(fmt::format("{}: '{}' has shape {}; expected {}", path, found->second, shape,
                                  tensor.their_shape()));
    used.emplace(own, found->second);
    tensors.emplace(tensor.name, tensor);
    weights.shapes.emplace(tensor.name, tensor.name == positions
                                            ? Shape{model.block_size, model.width}
                                            : tensor.shape);
  }
  check_tied_head(*folder, model, theirs);
  const std::string unused = unused_in(*folder, model, used);
  if (note) *note = unused;
  weights.read = [folder, used, tensors, model, positions](const std::string& name) {
    const HFTensor& tensor = tensors.at(name);
    std::vector<float> values = folder->read_floats(used.at(hf_short_name(name)));
    if (tensor.conv1d) return transposed(values, tensor.shape[1], tensor.shape[0]);
    if (name == positions) values.resize(static_cast<size_t>(model.block_size * model.width));
    return values;
  };
  weights.read_range = [folder, used, tensors](const std::string& name, int64_t begin,
                                               int64_t count) -> std::optional<std::vector<float>> {
    if (tensors.at(name).conv1d)
      return std::nullopt;  // a transposed matrix cannot be read in ranges
    return folder->read_floats(used.at(hf_short_name(name)), begin, count);
  };
  return weights;
}

std::string export_hugging_face(const WeightSource& weights, const HFModel& model,
                                const std::string& directory,
                                const std::function<void(FileSet& files)>& add) {
  std::vector<SafetensorsWriter::Entry> entries;
  const std::vector<HFTensor> tensors = hf_tensors(model.config);
  for (const HFTensor& tensor : tensors) {
    const auto found = weights.shapes.find(tensor.name);
    if (found == weights.shapes.end() || found->second != tensor.shape)
      throw FileError(fmt::format("export: {}: expected '{}' {}, as its settings say", weights.path,
                                  tensor.name, tensor.shape));
    entries.push_back({tensor.name, DType::f32, tensor.their_shape()});
  }
  const std::string config = hf_json(
      model.config, model.tokens);  // throws for unsupported models before a file is written
  make_directories(directory);
  FileSet files(directory);
  if (add) add(files);
  // transformers does not open files without this metadata.
  SafetensorsWriter writer(files.add("model.safetensors"), entries, {{"format", "pt"}});
  Checksum hash;
  for (const HFTensor& tensor : tensors) {
    const std::vector<float> values = weights.read(tensor.name);
    hash.update(std::as_bytes(std::span(values)));
    writer.write_floats(tensor.conv1d ? transposed(values, tensor.shape[0], tensor.shape[1])
                                      : values);
  }
  writer.finish();
  write_text(files.add(generation_name), hf_generation_json(model.tokens));
  write_text(files.add(config_name), config);
  files.finish();
  return hash.hex();
}

}  // namespace zg::models

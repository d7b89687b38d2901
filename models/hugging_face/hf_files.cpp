#include "zerograd/models/hugging_face/hf_files.h"

#include <algorithm>
#include <optional>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

File open_hf_config(const std::string& directory) {
  const std::string path = directory + "/" + hf_config_name;
  if (path_exists(path)) return File::open(path);
  raise<FileError>("{}{}; expected a folder as Hugging Face's libraries write one", directory,
                   !path_exists(directory)    ? ": there is no such folder"
                   : !is_directory(directory) ? " is not a folder"
                                              : " has no " + std::string(hf_config_name));
}

std::string read_hf_text(const File& file) {
  constexpr int64_t config_bytes = 1 << 20;
  return read_text(file, config_bytes);
}

std::string HFRequest::short_name(const std::string& name) const {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

void require_tensors_of_blocks(const SafetensorsFolder& folder, int64_t blocks) {
  const auto tensors = static_cast<int64_t>(folder.names().size());
  if (blocks > tensors)
    raise<FileError>(
        "{}: config.json has {} blocks; expected at most one for each of the {} tensors",
        folder.path(), blocks, tensors);
}

namespace {

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

}  // namespace

WeightSource hf_weights(const std::shared_ptr<const SafetensorsFolder>& folder,
                        const HFRequest& request) {
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
  return weights;
}

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

void require_weights(const WeightSource& weights, const std::vector<HFTensor>& tensors) {
  for (const HFTensor& tensor : tensors) {
    const auto found = weights.shapes.find(tensor.name);
    if (found == weights.shapes.end() || found->second != tensor.shape)
      raise<FileError>("export: {}: expected '{}' {}, as its settings say", weights.path,
                       tensor.name, tensor.shape);
  }
}

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

}  // namespace zg::models

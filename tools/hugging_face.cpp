#include "tools/hugging_face.h"

#include <memory>

#include "tools/text.h"
#include "zerograd/models/hugging_face.h"
#include "zerograd/models/names.h"
#include "zerograd/models/text/tokenizer_files.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/file_io.h"
#include "zerograd/runtime/file_set.h"
#include "zerograd/zero/checkpoint_file.h"
#include "zerograd/zero/checksum.h"
#include "zerograd/zero/manifest.h"
#include "zerograd/zero/safetensors_folder.h"

namespace zg::tools {
namespace {

constexpr const char *config_name = "config.json", *generation_name = "generation_config.json";
constexpr int64_t config_bytes = 1 << 20;

File open_config(const std::string& directory) {
  if (HuggingFaceFolder::is_at(directory)) return File::open(directory + "/" + config_name);
  const bool is_there = path_exists(directory), is_folder = is_directory(directory);
  const bool has_checkpoints = is_folder && (!zero::step_folders(directory).empty() ||
                                             path_exists(directory + "/" + zero::manifest_name));
  throw FileError("--from-hf: " + directory +
                  (!is_there         ? ": there is no such folder"
                   : !is_folder      ? " is no folder"
                   : has_checkpoints ? " has checkpoints"
                                     : " has no " + std::string(config_name)) +
                  "; expected a folder as Hugging Face's libraries write one" +
                  (has_checkpoints ? "; try --init or --resume" : ""));
}

models::HFModel read_model(const File& config, const std::string& directory) {
  models::HFModel model = models::hf_config(read_text(config, config_bytes), config.path());
  const std::string generation = directory + "/" + generation_name;
  if (path_exists(generation))
    models::read_hf_generation(read_text(generation, config_bytes), generation, model);
  return model;
}

// All but the longest sequence and the dropout, which flags can change.
bool is_same_model(const models::GPTConfig& a, const models::GPTConfig& b) {
  return a.layers == b.layers && a.heads == b.heads && a.width == b.width &&
         a.vocabulary == b.vocabulary && a.tied == b.tied && a.family == b.family &&
         a.position == b.position && a.embedding_norm == b.embedding_norm;
}

// What the model has no use for: of blocks that it lacks, an error; else a line, or nothing.
std::string unused_in(const zero::SafetensorsFolder& folder, const models::GPTConfig& model,
                      const std::map<std::string, std::string>& used) {
  std::string unused;
  int64_t count = 0;
  for (const std::string& name : folder.names()) {
    const std::string own = models::hf_short_name(name);
    if (used.contains(own) || models::hf_ignores(own, model)) continue;
    if (own.starts_with("h."))
      throw FileError(folder.path() + ": has '" + name + "', which a " +
                      models::hf_title(model.family) + " of " + std::to_string(model.layers) +
                      " blocks has not, as its config.json says");
    if (count++ == 0) unused = printable(name);
  }
  if (count == 0) return "";
  return text("%s: %lld tensors are not used, '%s' for one", folder.path().c_str(),
              (long long)count, unused.c_str());
}

// Short name to the file's own.
std::map<std::string, std::string> names_of(const zero::SafetensorsFolder& folder) {
  std::map<std::string, std::string> names;
  for (const std::string& name : folder.names()) names.emplace(models::hf_short_name(name), name);
  return names;
}

}  // namespace

HuggingFaceFolder::HuggingFaceFolder(std::string path)
    : path_(std::move(path)), config_(open_config(path_)), model_(read_model(config_, path_)) {}

bool HuggingFaceFolder::is_at(const std::string& path) {
  return path_exists(path + "/" + config_name) && !path_exists(path + "/" + zero::manifest_name) &&
         zero::step_folders(path).empty();
}

bool HuggingFaceFolder::has_tokenizer() const { return models::has_tokenizer(path_); }

std::vector<std::string> adopt_hf(const HuggingFaceFolder& folder, TrainOptions& options) {
  const models::GPTConfig& config = folder.model().config;
  for (const char* flag : {"--model-type", "--n-layer", "--n-head", "--n-embd", "--vocab-size",
                           "--tied", "--untied", "--position-embedding"})
    if (options.given.count(flag))
      throw ConfigError(std::string(flag) + ": " + options.from_hf +
                        " says itself what its model is; leave the flag out");
  ModelOptions& model = options.model;
  model.layers = config.layers;
  model.heads = config.heads;
  model.width = config.width;
  model.vocabulary = config.vocabulary;
  model.tied = config.tied;
  model.position = config.position;
  model.embedding_norm = config.embedding_norm;
  if (config.family == models::Family::bloom) model.model_type = name_of(config.family);
  if (!options.given.count("--dropout")) {
    if (!folder.model().dropouts.empty())
      throw Unsupported(options.from_hf + "/" + config_name + ": " + folder.model().dropouts +
                        " differ; this version has one dropout for all; try --dropout");
    model.dropout = static_cast<double>(config.dropout);
  }
  if (!options.given.count("--block-size")) model.block_size = config.block_size;
  if (config.position != models::Position::learned) return {};  // which takes any length
  if (model.block_size > config.block_size)
    throw ConfigError("--block-size: expected at most the " + std::to_string(config.block_size) +
                      " positions of " + options.from_hf + ", got " +
                      std::to_string(model.block_size));
  if (model.block_size == config.block_size) return {};
  return {text("of the %lld positions in %s the first %lld are used", (long long)config.block_size,
               options.from_hf.c_str(), (long long)model.block_size)};
}

zero::WeightSource HuggingFaceFolder::weights(const models::GPTConfig& model,
                                              std::string* note) const {
  models::GPTConfig whole = model;
  whole.block_size = model_.config.block_size;
  const std::string positions = std::string(models::names_of(model.family).positions) + ".weight";
  const auto folder = std::make_shared<zero::SafetensorsFolder>(path_);
  // Else the weights may be those of a model that another process has just exported there.
  if (!config_.has_its_path() || !is_same_model(model_.config, model))
    throw FileError(path_ + ": another model took this one's place while it was read; try again");
  const std::map<std::string, std::string> theirs = names_of(*folder);
  std::map<std::string, std::string> used;
  std::map<std::string, models::HFTensor> tensors;
  zero::WeightSource weights = {.path = path_};
  for (const models::HFTensor& tensor : models::hf_tensors(whole)) {
    const std::string own = models::hf_short_name(tensor.name);
    const auto found = theirs.find(own);
    if (found == theirs.end())
      throw FileError(path_ + ": has no '" + tensor.name + "' " + tensor.their_shape().str());
    if (const Shape& shape = folder->shape(found->second); shape != tensor.their_shape())
      throw FileError(path_ + ": '" + found->second + "' has shape " + shape.str() + "; expected " +
                      tensor.their_shape().str());
    used.emplace(own, found->second);
    tensors.emplace(tensor.name, tensor);
    weights.shapes.emplace(tensor.name, tensor.name == positions
                                            ? Shape{model.block_size, model.width}
                                            : tensor.shape);
  }
  if (note) *note = unused_in(*folder, model, used);
  weights.read = [folder, used, tensors, model, positions](const std::string& name) {
    const models::HFTensor& tensor = tensors.at(name);
    std::vector<float> values = folder->read_floats(used.at(models::hf_short_name(name)));
    if (tensor.conv1d) return models::transposed(values, tensor.shape[1], tensor.shape[0]);
    if (name == positions) values.resize(static_cast<size_t>(model.block_size * model.width));
    return values;
  };
  weights.read_range = [folder, used, tensors](const std::string& name, int64_t begin,
                                               int64_t count) -> std::optional<std::vector<float>> {
    if (tensors.at(name).conv1d) return std::nullopt;  // it is transposed as a whole
    return folder->read_floats(used.at(models::hf_short_name(name)), begin, count);
  };
  return weights;
}

std::string export_hf(const zero::WeightSource& weights, const models::HFModel& model,
                      const models::Tokenizer* tokenizer, const std::string& directory) {
  std::vector<zero::SafetensorsWriter::Entry> entries;
  const std::vector<models::HFTensor> tensors = models::hf_tensors(model.config);
  for (const models::HFTensor& tensor : tensors) {
    const auto found = weights.shapes.find(tensor.name);
    if (found == weights.shapes.end() || found->second != tensor.shape)
      throw FileError("export: " + weights.path + ": expected '" + tensor.name + "' " +
                      tensor.shape.str() + ", as its settings say");
    entries.push_back({tensor.name, DType::f32, tensor.their_shape()});
  }
  const std::string config =
      models::hf_json(model.config, model.tokens);  // refuses what they have not, before a file
  make_directories(directory);
  FileSet files(directory);
  if (tokenizer) {
    models::add_tokenizer(*tokenizer, files, "");
    write_text(files.add("tokenizer_config.json"),
               models::hf_tokenizer_config_json(*tokenizer, model.tokens, model.config.block_size));
  }
  // transformers opens no file without this format.
  zero::SafetensorsWriter writer(files.add("model.safetensors"), entries, {{"format", "pt"}});
  zero::Checksum hash;
  for (const models::HFTensor& tensor : tensors) {
    const std::vector<float> values = weights.read(tensor.name);
    hash.update(std::as_bytes(std::span(values)));
    writer.write_floats(tensor.conv1d ? models::transposed(values, tensor.shape[0], tensor.shape[1])
                                      : values);
  }
  writer.finish();
  write_text(files.add(generation_name), models::hf_generation_json(model.tokens));
  write_text(files.add(config_name), config);
  files.finish();
  return hash.hex();
}

}  // namespace zg::tools

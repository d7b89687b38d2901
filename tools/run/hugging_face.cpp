#include "tools/run/hugging_face.h"

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/text.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/manifest.h"

namespace zg::tools {
namespace {

bool has_checkpoints(const std::string& directory) {
  return path_exists(directory + "/" + zero::manifest_name) ||
         (is_directory(directory) && !zero::step_folders(directory).empty());
}

}  // namespace

bool is_hf_folder(const std::string& path) {
  return path_exists(path + "/config.json") && !has_checkpoints(path);
}

models::HuggingFaceFolder open_hf_folder(const std::string& path) {
  if (has_checkpoints(path))
    throw FileError("--from-hf: " + path +
                    " has checkpoints; expected a folder as Hugging Face's libraries write one; "
                    "try --init or --resume");
  if (!is_hf_folder(path)) try {
      return models::HuggingFaceFolder(path);
    } catch (const FileError& error) {
      throw FileError(std::string("--from-hf: ") + error.what());
    }
  return models::HuggingFaceFolder(path);
}

std::vector<std::string> adopt_hf(const models::HuggingFaceFolder& folder, TrainOptions& options) {
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
      throw Unsupported(options.from_hf + "/" + "config.json" + ": " + folder.model().dropouts +
                        " differ; this version has one dropout for all; try --dropout");
    model.dropout = static_cast<double>(config.dropout);
  }
  if (!options.given.count("--block-size")) model.block_size = config.block_size;
  if (config.position != models::Position::learned) return {};  // ALiBi models take any length
  if (model.block_size > config.block_size)
    throw ConfigError("--block-size: expected at most the " + std::to_string(config.block_size) +
                      " positions of " + options.from_hf + ", got " +
                      std::to_string(model.block_size));
  if (model.block_size == config.block_size) return {};
  return {text("of the %lld positions in %s the first %lld are used", (long long)config.block_size,
               options.from_hf.c_str(), (long long)model.block_size)};
}

}  // namespace zg::tools

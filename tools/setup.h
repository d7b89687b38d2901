#pragma once

#include <memory>
#include <optional>

#include "models/data.h"
#include "models/gpt.h"
#include "tools/options.h"
#include "tools/settings.h"
#include "zero/checkpoint_reader.h"
#include "zero/engine.h"

namespace zg::tools {

/// sort, adder, PATH.txt, PATH.bin or Megatron's PREFIX; block_size 0 takes the data's own, and
/// vocabulary 0 takes a PREFIX's from the tokenizer, or has all of it read for its largest token.
/// ConfigError for a block size that the task cannot have, or for a source that is none of these.
std::unique_ptr<models::Dataset> make_dataset(const DataOptions& options, int64_t block_size,
                                              uint64_t seed, int64_t vocabulary);

/// The characters of a dataset's tokens in order of their ids; empty when tokens are numbers.
std::string characters_of(const models::Dataset& dataset);

/// ConfigError when data does not have the tokens that a trained model knows.
void check_tokens(const Settings& saved, const models::Dataset& dataset, const std::string& source);

/// The longest sequence that flags and the model's name leave for the data: 0 for its own.
int64_t block_size_of(const ModelOptions& model, const DataOptions& data);
/// Name or sizes, filled with the dataset's block size and, where neither a flag nor a BLOOM's name
/// says it, vocabulary. ConfigError when the data has more tokens.
models::GPTConfig model_config(const ModelOptions& options, const models::Dataset& dataset);

/// FileError with the flags that would do when the weights of --init are of a model of another
/// size.
void check_initial_weights(const std::string& path, const models::GPTConfig& model);

/// Of a checkpoint, or of a safetensors file: what consolidate wrote into it, else sizes from its
/// shapes and heads from the options. FileError, ConfigError.
Settings settings_of(const std::string& path, const ModelOptions& options);
Settings settings_of(const zero::CheckpointReader& checkpoint);
/// What a checkpoint or file says of its run by itself.
std::optional<Settings> settings_in(const std::string& path);

/// Fills what `given` does not name from the settings of a checkpoint.
void adopt(const Settings& saved, TrainOptions& options);

/// A trained model that reads: from a checkpoint or a safetensors file, with settings_of() it.
struct TrainedModel {
  Settings settings;
  Device device;
  ParameterStore store;
  std::unique_ptr<models::GPT> model;
  std::unique_ptr<zero::Engine> engine;

  explicit TrainedModel(Device where) : device(std::move(where)) {}
};
std::unique_ptr<TrainedModel> load_model(const std::string& path, const ModelOptions& options,
                                         const PlaceOptions& place);

}  // namespace zg::tools

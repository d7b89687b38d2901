#pragma once

#include <memory>
#include <optional>

#include "tools/options.h"
#include "tools/settings.h"
#include "zerograd/models/data.h"
#include "zerograd/models/gpt.h"
#include "zerograd/models/text/tokenizer.h"
#include "zerograd/zero/checkpoint_reader.h"
#include "zerograd/zero/engine.h"

namespace zg::tools {

/// --data can be nothing; sort or adder; Megatron's PREFIX; PATH.bin; PATH.txt or any other file.
enum class DataKind : uint8_t { none, task, documents, tokens, text };
/// ConfigError when it is none of them, which says whether there is a file.
DataKind kind_of(const std::string& source);

/// FileError when the data that a checkpoint names is gone.
void check_there(const std::string& source, const std::string& checkpoint);

struct DatasetRequest {
  int64_t block_size = 0;  ///< 0: the data's own
  uint64_t seed = 3407;
  /// For documents; 0: the tokenizer's or, without one, the largest token plus 1, for which all of
  /// them are read.
  int64_t vocabulary = 0;
  const models::Tokenizer* tokenizer = nullptr;  ///< null: text is read as characters
};
/// ConfigError for a block size that the task cannot have, or for a source that is no data.
std::unique_ptr<models::Dataset> make_dataset(const DataOptions& options,
                                              const DatasetRequest& request);

/// The characters of a dataset's tokens in order of their ids; empty when tokens are numbers.
std::string characters_of(const models::Dataset& dataset);

/// The longest sequence that flags and the model's name leave for the data: 0 for its own.
int64_t block_size_of(const ModelOptions& model, const DataOptions& data);
/// Name or sizes, filled with the dataset's block size and, where neither a flag nor a BLOOM's name
/// says it, vocabulary. ConfigError when the data has more tokens.
models::GPTConfig model_config(const ModelOptions& options, const models::Dataset& dataset);

/// Trained weights as they describe themselves.
struct Known {
  Settings settings;
  std::string path;  ///< a step_N, a safetensors file or a Hugging Face folder
  /// The step_N, whose files are open; null: it is none.
  std::shared_ptr<zero::CheckpointReader> checkpoint = nullptr;
  bool bare = false;  ///< a file of weights only: its shapes say the sizes, nothing says the tokens
};
/// A checkpoint, of which the newest step_N that verifies is taken, a Hugging Face folder, or a
/// safetensors file: what consolidate wrote into it, else sizes from its shapes and heads from the
/// options. FileError, ConfigError.
Known known_of(const std::string& path, const ModelOptions& options);
Settings settings_of(const zero::CheckpointReader& checkpoint);
/// The settings that a step_N, file or Hugging Face folder has of its own; absent: a bare file.
std::optional<Settings> settings_in(const std::string& path);
/// The weights of what known_of() found, with the positions that its model has.
WeightSource weights_of(const Known& known);

/// The weights of --init, an open checkpoint or a file: ConfigError when their tokens mean
/// something else than the run's, FileError with the flags that would do when they are of a model
/// of another size. Returns what a user should know of their tokens; else nothing.
std::string check_initial_weights(const std::string& path,
                                  const std::shared_ptr<zero::CheckpointReader>& checkpoint,
                                  const Settings& run);

/// Fills what `given` does not name from the settings of a checkpoint.
void adopt(const Settings& saved, TrainOptions& options);

/// A trained model that reads: known_of(), with its weights.
struct TrainedModel {
  Known known;
  Device device;
  ParameterStore store;
  std::unique_ptr<models::GPT> model;
  std::unique_ptr<zero::Engine> engine;

  explicit TrainedModel(Device where) : device(std::move(where)) {}
};
std::unique_ptr<TrainedModel> load_model(const std::string& path, const ModelOptions& options,
                                         const PlaceOptions& place);

}  // namespace zg::tools

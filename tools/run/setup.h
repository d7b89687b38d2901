#pragma once

#include <memory>
#include <optional>

#include "tools/options/options.h"
#include "tools/options/run_spec.h"
#include "tools/run/conversations.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/models/seq2seq/seq2seq.h"
#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/engine.h"

namespace zg {
class SafetensorsReader;
}

namespace zg::tools {

/// Throws FileError when the data that a checkpoint names does not exist any more.
void check_data_exists(const std::string& source, const std::string& checkpoint,
                       const std::string& flag = "--data");

/// Throws ConfigError for a block size that the task does not support, or for an unknown source.
std::unique_ptr<models::Dataset> make_dataset(const DataOptions& options,
                                              const DatasetRequest& request);

/// The characters of a dataset's tokens in order of their ids; empty if tokens are numbers.
std::string characters_of(const models::Dataset& dataset);

/// The block size that flags and the model's name give for the data; 0: the default of the data.
int64_t block_size_of(const TrainOptions& options);
/// The model's configuration, from its name or sizes and the dataset's block size. The vocabulary
/// comes from a flag, a BLOOM's name or the dataset, in this order. Throws ConfigError when the
/// data has more tokens.
models::GPTConfig model_config(const TrainOptions& options, const models::Dataset& dataset);

/// The sizes of an encoder-decoder, as RunSpec::model has them.
models::GPTConfig sizes_of(const models::Seq2SeqConfig& config);

/// The model of some settings: one of both.
struct WholeModel {
  std::unique_ptr<models::GPT> decoder;
  std::unique_ptr<models::Seq2Seq> seq2seq;

  WholeModel(ParameterStore& store, const RunSpec& settings);
};

/// Trained weights and the settings that are stored with them.
struct SavedModel {
  RunSpec settings;
  std::string path;  ///< a step_N, a safetensors file or a Hugging Face folder
  /// The step_N, with open files; null: the path is not a step_N.
  std::shared_ptr<zero::CheckpointReader> checkpoint = nullptr;
  bool weights_only = false;  ///< true: a file without settings. The tensors' shapes give the
                              ///< sizes; what the tokens mean is unknown
  std::string adapter = {};  ///< the folder of PEFT with the adapters; empty: `checkpoint` has them
};
/// Opens a checkpoint (the newest step_N that verifies), a Hugging Face folder, or a safetensors
/// file. The settings of a file are those that consolidate stored in it, else the tensors' shapes
/// give the sizes, and the options give the number of heads. Throws FileError, ConfigError.
SavedModel open_saved_model(const std::string& path, const TrainOptions& options,
                            const AdapterPaths& paths = {});
RunSpec settings_of(const zero::CheckpointReader& checkpoint);
/// Checks --n-head and --model-type: they have no effect beside a checkpoint or file that stores
/// its model.
void check_model_flags(const Given& given, const std::string& checkpoint);

/// The settings that a step_N, file or Hugging Face folder stores; absent: a file with weights
/// only.
std::optional<RunSpec> settings_in(const std::string& path);
/// The weights in a Hugging Face folder for the settings' model, as HuggingFaceFolder::weights().
WeightSource hf_weights(const std::string& path, const RunSpec& settings,
                        std::string* note = nullptr);
/// The weights that open_saved_model() found, with as many positions as its model has. Those of a
/// model with adapters are both; `check` compares their base with the hash in the settings.
WeightSource weights_of(const SavedModel& saved_model, bool check = true);
/// Takes `path` for the base of the adapters, which was moved; `checkpoint` names them in errors.
/// Throws ConfigError if the settings have no adapters.
void move_base(RunSpec& settings, const std::string& path, const std::string& checkpoint);
/// The weights that the adapters of these settings are trained for. Throws FileError.
WeightSource base_weights(const RunSpec& settings);
/// The same after a comparison with the hash in the settings. Throws FileError.
WeightSource checked_base(const RunSpec& settings);
/// The matrices of a model with adapters.
WeightSource adapter_weights(const SavedModel& saved_model);

/// Throws ConfigError if `path`, which `flag` names, is, contains or lies in the data, the
/// tokenizer or the adapters' base of a checkpoint's run, as far as they exist.
void check_output(const RunSpec& saved, const std::string& flag, const std::string& path);

/// The sizes in the shapes of a file of weights, but for the number of heads, which they do not
/// show.
models::GPTConfig sizes_from_shapes(const std::string& path);
/// The family whose tensor names the file uses; absent: the names are of no known family.
std::optional<models::Family> family_of(const SafetensorsReader& reader);

/// Checks the weights of --init, an open checkpoint or a file. Throws ConfigError when their tokens
/// mean something else than the run's. Throws FileError when their model has another size; the
/// message names the flags that match. Returns a note about their tokens for the user; empty: none.
std::string check_initial_weights(const std::string& path,
                                  const std::shared_ptr<zero::CheckpointReader>& checkpoint,
                                  const RunSpec& run);

}  // namespace zg::tools

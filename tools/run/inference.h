#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tools/options/options.h"
#include "tools/run/inputs.h"
#include "zerograd/autograd/values.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/models/gpt/score.h"

namespace zg::tools {

/// The options that `eval` and `generate` share. Settings without a flag come from the checkpoint.
struct InferenceOptions {
  TrainOptions train;  ///< flags of train: data, model, pairs, seed, device
  std::string checkpoint;
  AdapterPaths adapters;
  std::optional<DType> dtype;  ///< dtype of the stored weights; absent: that of their files
  std::string memory_json;
  bool only_planned = false;  ///< `plan eval` and `plan generate`: nothing is read or computed
};
/// --device, --dtype and the other flags of InferenceOptions that both commands have.
FlagGroup inference_flags(InferenceOptions& options);
/// Returns false after printing help. Throws ConfigError.
bool parse_inference(const CommandLine& line, const std::vector<std::string>& arguments,
                     InferenceOptions& options);

/// A trained model for inference, with its weights on a device.
struct TrainedModel {
  SavedModel saved_model;
  Device device;
  ParameterStore store;
  WholeModel model;
  std::unique_ptr<Values> values;

  TrainedModel(SavedModel saved, Device where)
      : saved_model(std::move(saved)),
        device(std::move(where)),
        model(store, saved_model.settings) {}
  std::function<Tape()> make_tape() const {
    return [this] { return values->inference_tape(); };
  }
};

/// Calls open_saved_model(). A decoder gets the block size of the options if its positions allow
/// it.
SavedModel open_for_inference(const InferenceOptions& options);

/// The purpose of a call of InferenceWork.
enum class InferenceMode : uint8_t {
  run,    ///< the work itself
  plan,   ///< all of the work, on a device without memory and without output
  budget  ///< before a run: as plan, but only the part of the work that needs the most memory
};
using InferenceWork = std::function<void(const TrainedModel& model, InferenceMode mode)>;

/// Plans the work. Then, unless options.only_planned is set, reads the weights and does the work.
/// The plan and the run execute the same code, so they use the same bytes. Throws OutOfMemory
/// before weights are read if the plan needs more than --device-memory, --host-memory or the memory
/// that this machine has available. Writes --memory-json. Returns the exit status: 3 for a plan
/// that exceeds a flag's limit.
int run_inference(const SavedModel& saved_model, const InferenceOptions& options,
                  const InferenceWork& work);

/// A model and the dataset on which it is evaluated.
struct Evaluation {
  const models::GPT& model;
  std::function<Tape()> make_tape;  ///< makes a tape that records nothing
  const models::Dataset& dataset;
  Device device;
  bool is_sort_task = false;      ///< false: the adder. Chooses the printed wording
  Communicator* ranks = nullptr;  ///< share the questions of scores()

  /// Mean loss over the first `batches` batches of `batch` samples of the validation split; the
  /// last batch may be smaller. 0 batches: the whole split. Throws ConfigError when there is no
  /// validation split.
  double loss(int64_t batch, int64_t batches) const;

  /// Scores of the training and the validation split, computed `batch` problems at a time. minGPT
  /// calls the validation split test. For each split, `print` gets a line for each of the first
  /// three mistakes, then the score: "train final score: 5000/5000 = 100.00% correct". Sort and
  /// adder only.
  struct Scores {
    double train, test;  ///< fraction from 0 to 1
  };
  Scores scores(int64_t batch, int64_t samples,
                const std::function<void(const std::string&)>& print) const;

  /// Dry run of the first forward pass of scores(), on the questions of one batch. The later passes
  /// do not need more memory.
  void plan_scores(int64_t batch, int64_t samples) const;

  /// Sort only. Prints the lines that minGPT's demo prints at its end: one problem of the
  /// validation split, the model's answer, the expected answer, and whether they are equal.
  void print_example(const std::function<void(const std::string&)>& print) const;
};

}  // namespace zg::tools

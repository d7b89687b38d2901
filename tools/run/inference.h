#pragma once

#include <functional>
#include <memory>

#include "tools/options/options.h"
#include "tools/run/inputs.h"
#include "zerograd/autograd/values.h"

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

}  // namespace zg::tools

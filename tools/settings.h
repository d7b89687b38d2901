#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "tools/data_file.h"
#include "tools/options.h"
#include "zerograd/models/gpt.h"
#include "zerograd/models/hugging_face.h"
#include "zerograd/zero/checkpoint_file.h"
#include "zerograd/zero/config.h"

namespace zg::tools {

/// What a run is, resolved to numbers: what a checkpoint holds besides tensors, so that resuming,
/// eval and generate need nothing but the checkpoint.
struct Settings {
  models::GPTConfig model;
  DataOptions data;
  std::string characters;  ///< of the data, in order of token ids; empty when tokens are numbers
  Contents contents;       ///< of the data file, as the run read it
  models::SpecialTokens special_tokens;  ///< as imported; a tokenizer may say others
  /// models::tokenizer_json() of the tokenizer that data names; empty: none, or an older
  /// checkpoint. A checkpoint has it as a file of its own.
  std::string tokenizer_json;
  int64_t micro_batch = 0;
  int64_t accumulation = 1;  ///< of the whole batch
  int64_t ranks = 1;         ///< that share the data
  Axes axes;                 ///< of those that share the model
  BatchRampup rampup;        ///< how a step comes to the whole batch
  OptimisationOptions optimisation;
  uint64_t seed = 3407;
  int64_t steps = 0;            ///< where the run ends; 0: an older checkpoint, which does not say
  double epochs = 0.0;          ///< what that followed from; 0: from a number of steps
  int64_t train_samples = 0;    ///< or from that; 0: it did not
  int64_t save_top_k = -1;      ///< -1: every checkpoint is kept, as older versions did
  int64_t samples = 0;          ///< consumed so far: where the data goes on
  int64_t skipped_samples = 0;  ///< of them, by steps that were not taken
  /// What --save-top-k compares: the last validation's loss when there are any, else the last
  /// step's. NaN: unknown.
  double loss = std::numeric_limits<double>::quiet_NaN();

  int64_t samples_per_step() const { return micro_batch * accumulation * ranks; }  ///< the whole
  /// Of the step that comes next, which may still be on its way to the whole batch.
  int64_t step_samples() const { return rampup.batch_at(samples, samples_per_step()); }
  int64_t step_accumulation() const { return accumulation_after(samples); }
  int64_t accumulation_after(int64_t consumed) const {
    return rampup.batch_at(consumed, samples_per_step()) / (samples_per_step() / accumulation);
  }
};

std::string to_json(const Settings& settings);  ///< without tokenizer_json
Settings settings_from_json(const std::string& json, const std::string& path);  ///< FileError

/// A run as its checkpoint keeps it, beside tensors and counters. Paths are absolute in it, so that
/// they lead to the same files from any folder.
zero::CheckpointInfo checkpoint_info(const Settings& settings);
/// Back from it; `path` is for errors. FileError.
Settings settings_from(const zero::CheckpointInfo& info, const std::string& path);

/// A path as a checkpoint has it: absolute, but for nothing, sort and adder.
std::string absolute_path(const std::string& path);

/// Compares a resumed run with its checkpoint: ConfigError when the model differs; what else
/// differs, the contents of the data file too, comes back as lines "run.rate: 0.0005 in the
/// checkpoint, 0.001 now".
std::vector<std::string> check_resumed(const Settings& saved, const Settings& now);

}  // namespace zg::tools

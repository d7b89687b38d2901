#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/hugging_face/hugging_face.h"

// Computes the settings of a run from the given options and the facts that were read. No file,
// device or clock is used here.
namespace zg::tools {

/// The facts that are read for a run before its data.
struct Facts {
  std::optional<RunSpec> saved;  ///< of the resumed checkpoint; absent: a fresh start
  std::string resumed;           ///< path of that checkpoint
  int64_t steps_done = 0;        ///< steps taken before that checkpoint
  // The model in the folder of --from-hf: one of the two.
  std::optional<models::HFModel> decoder;
  std::optional<models::HFSeq2Seq> seq2seq;
  std::optional<LoraOptions> adapter;  ///< those of --init-adapter
  int64_t planned_steps = 3;           ///< steps of a plan whose length no flag gives
};

/// Completes options by the settings of the checkpoint or folder, and by the values that follow
/// from several flags together. Returns notes for the user. Throws ConfigError and Unsupported for
/// flags that contradict each other or the facts.
std::vector<std::string> resolve_options(TrainOptions& options, const Facts& facts);

struct ResolvedRun {
  RunSpec spec;
  double epoch_samples = 0.0;  ///< samples of an epoch; 0: the length is not given in epochs
  std::string note = {};       ///< note on sequences that are not used; empty: all are used
};
/// The run that follows from resolved options and the data: its model, batch, length and schedule.
/// Sets options.epochs by --limit-train-batches. Throws ConfigError.
ResolvedRun resolve_run(TrainOptions& options, const Facts& facts, const models::Dataset& dataset);

}  // namespace zg::tools

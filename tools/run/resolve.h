#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/hugging_face/hugging_face.h"

// Decides what a run is, from what was given and what was read. No file, device or clock is used
// here.
namespace zg::tools {

/// The facts that are read for a run before its data.
struct Facts {
  std::optional<RunSpec> saved;  ///< of the checkpoint that it resumes
  std::string resumed;           ///< its path
  int64_t steps_done = 0;        ///< steps taken before it
  // The model in the folder of --from-hf: one of both.
  std::optional<models::HFModel> decoder;
  std::optional<models::HFSeq2Seq> seq2seq;
  std::optional<LoraOptions> adapter;  ///< of --init-adapter
  int64_t planned_steps = 3;           ///< steps of a plan whose length no flag gives
};

/// Completes options by the settings of the checkpoint or folder, and by what flags say together.
/// Returns notes for the user. Throws ConfigError and Unsupported for flags that contradict each
/// other or the facts.
std::vector<std::string> resolve_options(TrainOptions& options, const Facts& facts);

struct ResolvedRun {
  RunSpec spec;
  double epoch_samples = 0.0;  ///< samples of an epoch; 0: the length is not given in epochs
  std::string note = {};       ///< on sequences that the length leaves out; empty: there are none
};
/// The run that follows from resolved options and the data: its model, batch, length and schedule.
/// Sets options.epochs by --limit-train-batches. Throws ConfigError.
ResolvedRun resolve_run(TrainOptions& options, const Facts& facts, const models::Dataset& dataset);

}  // namespace zg::tools

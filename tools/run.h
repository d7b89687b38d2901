#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/checkpoints.h"
#include "tools/options.h"
#include "tools/settings.h"
#include "zerograd/models/data.h"
#include "zerograd/runtime/trace.h"

namespace zg::tools {

/// The steps that --trace records, and their trace.
struct TracedSteps {
  const std::string path;  ///< this process's
  const StepRange steps;
  const std::shared_ptr<Trace> trace = std::make_shared<Trace>();
  bool is_written = false;

  /// Once all ranks of this process are past the steps, or the run ends. False: no step was traced,
  /// and there is no file. FileError.
  bool write();
};

/// What the ranks of one run share: read, checked and solved once, before any of them starts.
struct Run {
  TrainOptions options;                       ///< with what a resumed checkpoint says
  std::shared_ptr<zero::DirectoryLock> lock;  ///< of --save, by the process that writes there
  /// The step_N that it goes on from, open until every rank has loaded it; null: a fresh start.
  Checkpoint checkpoint;
  std::string resumed;     ///< its path; empty: a fresh start
  Checkpoint initial;      ///< of --init, where that names a checkpoint, and open as long
  int64_t steps_done = 0;  ///< by the checkpoint
  std::shared_ptr<const models::Dataset> dataset;
  Settings settings;                    ///< where the run begins
  std::vector<std::string> changes;     ///< since the checkpoint, a line each
  int64_t steps = 0;                    ///< where the run ends
  std::string data_line;                ///< names the data and its tokens, for the log
  double epoch_samples = 0.0;           ///< of an epoch, where the run counts them; 0: it does not
  std::shared_ptr<TracedSteps> traced;  ///< null: not asked for
};

/// FileError when the flag's file cannot be written; none is left behind.
void check_writable(const char* flag, const std::string& path);

/// Reads data and checkpoint, solves the batch and sees that outputs can be written. ConfigError,
/// FileError, Unsupported. With a dataset, that one is trained on and --data only names it; with a
/// lock, --save is locked already.
Run prepare_run(const TrainOptions& options,
                std::shared_ptr<const models::Dataset> dataset = nullptr,
                std::shared_ptr<zero::DirectoryLock> lock = nullptr);

}  // namespace zg::tools

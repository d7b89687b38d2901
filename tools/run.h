#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/data.h"
#include "runtime/trace.h"
#include "tools/options.h"
#include "tools/settings.h"

namespace zg::tools {

/// What --trace asks for, and how far it has come.
struct TracedSteps {
  const std::string path;  ///< this process's
  const StepRange steps;
  const std::shared_ptr<Trace> trace = std::make_shared<Trace>();
  bool is_written = false;

  /// Once all ranks of this process are past the steps, or the run ends. FileError.
  void write();
};

/// What the ranks of one run share: read, checked and solved once, before any of them starts.
struct Run {
  TrainOptions options;    ///< with what a resumed checkpoint says
  std::string resumed;     ///< its step_N; empty: a fresh start
  int64_t steps_done = 0;  ///< by the checkpoint
  std::shared_ptr<const models::Dataset> dataset;
  Settings settings;                    ///< where the run begins
  std::vector<std::string> changes;     ///< since the checkpoint, a line each
  int64_t steps = 0;                    ///< where the run ends
  double epoch_samples = 0.0;           ///< of an epoch, where the run counts them; 0: it does not
  std::shared_ptr<TracedSteps> traced;  ///< null: not asked for
};

/// FileError when the flag's file cannot be written; none is left behind.
void check_writable(const char* flag, const std::string& path);

/// Reads data and checkpoint, solves the batch and sees that outputs can be written. ConfigError,
/// FileError, Unsupported. With a dataset, that one is trained on and --data only names it.
Run prepare_run(const TrainOptions& options,
                std::shared_ptr<const models::Dataset> dataset = nullptr);

}  // namespace zg::tools

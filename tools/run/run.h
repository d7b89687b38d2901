#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/options/options.h"
#include "tools/options/run_spec.h"
#include "tools/run/inputs.h"
#include "zerograd/kernels/matmul/matmul_algorithms.h"
#include "zerograd/models/data/data.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/trace.h"

// A run, and its state before any rank starts.
namespace zg::tools {

/// The range of steps that --trace records, and the trace.
struct TracedSteps {
  const std::string path;  ///< the file of this process
  const StepRange steps;
  const std::shared_ptr<Trace> trace = std::make_shared<Trace>();
  bool is_written = false;

  /// Call it once all ranks of this process have taken the steps, or when the run ends. False: no
  /// step was traced and no file was written. Throws FileError.
  bool write();
};

/// The state that all ranks of a run share. prepare_run() makes it once, before any rank starts.
struct Run {
  /// Resolved: it includes the settings of a resumed checkpoint, and what follows from flags and
  /// data.
  TrainOptions options;
  /// Lock of --save, held by the process that writes there.
  std::shared_ptr<zero::DirectoryLock> lock;
  /// The step_N that the run resumes; open until every rank has loaded it. Null: a fresh start.
  Checkpoint checkpoint;
  std::string resumed;  ///< path of `checkpoint`; empty: a fresh start
  /// The checkpoint of --init, if that names one; open as long as `checkpoint`.
  Checkpoint initial;
  int64_t steps_done = 0;  ///< steps taken before the checkpoint
  std::shared_ptr<const models::Dataset> dataset;
  /// The same of an encoder-decoder; null: the model is a decoder.
  std::shared_ptr<const PairData> pairs;
  std::vector<std::string> changes;  ///< differences from the checkpoint, one per line
  std::string data_line;             ///< log line about the data and its tokens
  double epoch_samples = 0.0;  ///< samples per epoch; 0: the run's length is not given in epochs
  std::shared_ptr<TracedSteps> traced;  ///< null: no trace was requested
  /// Those of --matmul-algorithms; null: none.
  std::shared_ptr<const MatmulAlgorithms> algorithms;
};

/// Throws FileError if the flag's file cannot be written. Leaves no file behind.
void check_writable(const char* flag, const std::string& path);

/// Reads data and checkpoint, solves the batch and checks that outputs can be written. Throws
/// ConfigError, FileError, Unsupported. If `dataset` is given, the run trains on it and uses --data
/// only as its name. If `lock` is given, --save is already locked.
Run prepare_run(const TrainOptions& options,
                std::shared_ptr<const models::Dataset> dataset = nullptr,
                std::shared_ptr<zero::DirectoryLock> lock = nullptr);

// Ranks that are processes (processes.cpp).

/// Name and value of all settings that must be equal on every rank before step 0; long values are
/// given as checksums. Settings that follow from a checkpoint are checked by agree_on_checkpoint().
std::vector<std::pair<std::string, std::string>> common_values(const Run& run);

/// Makes all ranks use the same checkpoint. Each process chooses one by itself. If another run
/// saves and removes checkpoints meanwhile, the choices may differ; then all processes choose
/// again, from the options that the run was prepared with. Throws ConfigError when other settings
/// differ. Collective; its collectives are not counted as the run's.
Run agree_on_checkpoint(Run run, const TrainOptions& given, Communicator& ranks);

}  // namespace zg::tools

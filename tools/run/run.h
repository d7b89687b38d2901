#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/options/options.h"
#include "tools/options/run_spec.h"
#include "tools/run/inputs.h"
#include "zerograd/kernels/matmul/matmul_algorithms.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/memory_rows.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/report.h"

// A training run, and the state that it prepares before any rank starts.
namespace zg::tools {

/// The first steps of the run whose memory a page shows (--report).
inline constexpr int64_t reported_steps = 3;

/// The range of steps that --trace records, and the trace.
struct TracedSteps {
  const std::string path;  ///< the file of this process; empty: only for the page
  const StepRange steps;
  const std::shared_ptr<Trace> trace = std::make_shared<Trace>();
  bool is_written = false;

  /// Call it after all ranks of this process have taken the steps, or when the run ends. Returns
  /// false if no step was traced; then it writes no file. Throws FileError.
  bool write();
};

/// The state that all ranks of a run share. prepare_run() makes it once, before any rank starts.
struct Run {
  /// The resolved options: those of flags and of a resumed checkpoint, and the values that are
  /// derived from them and from the data.
  TrainOptions options;
  /// Lock of --save, held by the process that writes there.
  std::shared_ptr<zero::DirectoryLock> lock;
  /// The step_N that the run resumes; open until every rank has loaded it. Null: a fresh start.
  Checkpoint checkpoint;
  std::string resumed;  ///< path of `checkpoint`; empty: a fresh start
  /// The checkpoint of --init; open as long as `checkpoint`. Null: --init names no checkpoint.
  Checkpoint initial;
  int64_t steps_done = 0;  ///< steps taken before the checkpoint
  std::shared_ptr<const models::Dataset> dataset;
  /// The pairs of an encoder-decoder, the same object as `dataset`; null: the model is a decoder.
  std::shared_ptr<const PairData> pairs;
  std::vector<std::string> changes;  ///< differences from the checkpoint, one per line
  std::string data_line;             ///< log line about the data and its tokens
  double epoch_samples = 0.0;  ///< samples per epoch; 0: the run's length is not given in epochs
  std::vector<zero::RunCurves> compared;  ///< with --report: the runs of --compare-metrics
  std::vector<MemoryRow> planned_rows;    ///< with --report: rank 0's first steps, as planned
  std::shared_ptr<TracedSteps> traced;    ///< null: no trace was requested
  /// The algorithms in the file of --matmul-algorithms; null: the flag is not given.
  std::shared_ptr<const MatmulAlgorithms> algorithms;
};

/// Throws FileError if the flag's file cannot be written. Leaves no file behind.
void check_writable(const char* flag, const std::string& path);

/// Reads data and checkpoint, computes the batch size and checks that outputs can be written.
/// Throws ConfigError, FileError, Unsupported. If `dataset` is given, the run trains on it and uses
/// the value of --data only as a name for it. If `lock` is given, --save is already locked.
Run prepare_run(const TrainOptions& options,
                std::shared_ptr<const models::Dataset> dataset = nullptr,
                std::shared_ptr<zero::DirectoryLock> lock = nullptr);

// Ranks that are processes.

/// Name and value of all settings that must be equal on every rank before step 0; long values are
/// given as checksums. Settings that follow from a checkpoint are checked by agree_on_checkpoint().
std::vector<std::pair<std::string, std::string>> common_values(const Run& run);

/// Makes all ranks use the same checkpoint. Each process chooses one by itself. If another run
/// saves and removes checkpoints meanwhile, the choices may differ; then all processes choose
/// again, from the options that the run was prepared with. Throws ConfigError when other settings
/// differ. Collective; its collectives are not counted as the run's.
Run agree_on_checkpoint(Run run, const TrainOptions& given, Communicator& ranks);

// Computes the settings of a run from the given options and the facts that were read. No file,
// device or clock is used here.

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

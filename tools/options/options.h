#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/options/run_spec.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/models/seq2seq/beam_search.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/device.h"
#include "zerograd/zero/deepspeed/deepspeed.h"

namespace zg::tools {

/// Fault injection: one fault on one rank, in one step or several, to check how a run ends.
struct FaultInjection {
  enum class Fault : uint8_t {
    none,
    error,     ///< "throw": a ShapeError, as for an argument of the wrong shape
    leave,     ///< "return": the rank ends early, without an error
    stall,     ///< the rank hangs outside any collective
    infinity,  ///< "inf": an infinite gradient; the step is skipped on all ranks
    kill,      ///< SIGKILL for the process, with all its ranks if they are threads
    stop,      ///< SIGSTOP: processes only
    memory,    ///< "oom": the rank allocates more memory than exists
    mismatch,  ///< the rank calls a collective that the other ranks do not call
    flip       ///< a bit changes, which nothing reports
  };
  /// The memory whose bit flips. Parameters and moments: at the begin of the step; a checkpoint: of
  /// a parameter while it is written; the others: an output of a kernel or of a collective.
  enum class Kind : uint8_t { parameter, moment, gradient, activation, message, checkpoint };
  enum class Phase : uint8_t {
    begin,  ///< start of the step; the default phase
    init,   ///< before step 0 or before the first resumed step; has no step number
    forward,
    backward,
    step,  ///< the optimizer update
    save   ///< the save at the end of a step
  };
  Fault fault = Fault::none;
  Phase phase = Phase::begin;
  int64_t rank = 0;
  std::vector<int64_t> steps;  ///< ascending
  Kind kind = Kind::parameter;
  int64_t at = 0, bit = 0;      ///< of a flip: parameter and element, or the number of the output
  int64_t injected_before = 0;  ///< faults injected in earlier attempts of this run

  bool applies(int at_rank, int64_t at_step, Phase at) const {
    if (fault == Fault::none || fault == Fault::flip || rank != at_rank || phase != at)
      return false;
    if (phase == Phase::init) return injected_before == 0;
    // Each attempt of a run ends at its fault, so each attempt uses one of the steps. inf does not
    // end a run.
    if (fault == Fault::infinity) return std::ranges::find(steps, at_step) != steps.end();
    return injected_before < static_cast<int64_t>(steps.size()) &&
           steps[static_cast<size_t>(injected_before)] == at_step;
  }
};

/// The words of --inject in the order of the enumerators, without none and begin, which have no
/// word.
inline const std::vector<std::string> fault_words = {"throw", "return", "stall",    "inf", "kill",
                                                     "stop",  "oom",    "mismatch", "flip"};
inline const std::vector<std::string> kind_words = {"parameter",  "moment",  "gradient",
                                                    "activation", "message", "checkpoint"};
inline const std::vector<std::string> phase_words = {"init", "forward", "backward", "step", "save"};

/// Adapters that eval, generate and export read.
struct AdapterPaths {
  std::string adapter;  ///< path of a folder of PEFT; empty: none
  std::string base;     ///< new path of the base of a checkpoint's adapters; empty: it did not move
};

/// The batch sizes that flags or a config give.
struct BatchOptions {
  std::optional<int64_t> micro, accumulation, train;
  /// Position in a config, "ds.json:2:3: train_batch_size: "; empty: set by flags.
  std::string place;
};

/// DeepSpeed's config; flags override it.
struct ConfigOptions {
  std::string path;  ///< empty: none
  zero::DeepSpeedVersion compat = zero::DeepSpeedVersion::v0_19;
  bool lenient = false;
};

struct DeviceFlags {
  Device::Type type = Device::Type::cpu;  ///< not meta
  Device::Options device;
};

/// How much of the training data is an epoch (Lightning's limit_train_batches).
struct EpochLimit {
  int64_t batches = 0;  ///< micro-batches of each rank, at most; 0: all
  double share = 1.0;   ///< fraction of those micro-batches
};

/// Steps of a run, counted from 0.
struct StepRange {
  int64_t first = 0, end = 0;
  bool contains(int64_t step) const { return step >= first && step < end; }
};

struct OffloadFlags {
  /// Lightning's: the states that no other flag places are stored on the host.
  bool cpu_offload = false;
  std::string nvme_path;
  /// DeepSpeed's: tensors that checkpointed blocks save are stored on the host.
  bool cpu_checkpointing = false;
};

/// Tracking, as in Hugging Face's scripts: writes events for TensorBoard to a folder in
/// --output-dir.
struct Tracking {
  bool enabled = false;
  std::string service;            ///< "tensorboard", "all" (the same) or "none"; empty: not given
  std::string name = "zerograd";  ///< name of the folder in --output-dir
};

/// The origin of a setting that no flag sets.
enum class Source : uint8_t { config, checkpoint, folder };

/// All options of `train`: the run, and how a process executes it. The fields of RunSpec have the
/// values that flags, a config, a checkpoint and a folder give; prepare_run() computes the others.
struct TrainOptions : RunSpec {
  bool finetunes = false;  ///< the command is `finetune`: train on conversations
  /// The flags on the command line and those whose key a config has, by first name.
  Given given;
  Given defaulted;  ///< names of rows that a config set by its defaults, not by its text
  /// The rows of the table that a config, checkpoint or folder has set, by Field::name().
  std::map<std::string, Source> sources;
  /// A preset or a family. A family needs the sizes (layers, heads, width). Sizes without a family
  /// are a GPT's.
  std::string model_type = "gpt-nano";
  /// Value of a flag of Megatron, which must equal the block size; 0: not given.
  int64_t max_positions = 0;
  std::string initial_weights;
  std::string from_hf;          ///< path of a Hugging Face folder; empty: none
  std::string initial_adapter;  ///< path of a folder of PEFT; empty: none
  std::string moved_base;       ///< new path of the base of resumed adapters; empty: not moved
  ConfigOptions config;
  zero::BucketsByWidth buckets;  ///< bucket sizes that a config leaves to the model
  BatchOptions batch;
  double warmup_ratio = 0.0;  ///< warmup steps as a share of the run's steps; 0: not given
  EpochLimit epoch_limit;
  int64_t max_bad_steps = 50;  ///< 0: the run never ends because of them
  OffloadFlags offload;
  bool activation_checkpoint = false;
  DeviceFlags device_flags;
  std::string matmul_algorithms;       ///< path of the file of algorithms for cuBLASLt; empty: none
  int64_t ranks = 1;                   ///< all axes together
  std::optional<ProcessRank> process;  ///< the rank of this process; absent: ranks are threads
  double comm_timeout_s = 60.0;
  bool dump_collectives = false;
  FaultInjection injection;

  int64_t steps_per_print = 0;  ///< interval of DeepSpeed's two progress lines; 0: none
  int64_t log_interval = 100, eval_interval = 0, sample_interval = 0;
  int64_t eval_batches = 20, score_samples = 5000;
  std::string metrics, trace, report;    ///< files; empty: none
  std::string compared_metrics;          ///< files, separated by commas
  zero::AuditOptions audit;              ///< as its flags say; without a path: none
  std::vector<std::string> command;      ///< the words of the command line
  std::optional<StepRange> trace_steps;  ///< absent: three steps after two of warm-up
  std::string tensorboard;               ///< folder of the event files; empty: none
  Tracking tracking;
  bool dump_memory = false;
  bool explain_settings = false;  ///< print each setting and its source instead of running
  std::string memory_json, kernels;
  std::string dump_gradients;                  ///< output path; empty: none
  std::optional<int64_t> dump_gradients_step;  ///< given with the path
  std::string save;
  int64_t save_interval = 0;
  bool async_save = false;
  /// The run saves and ends after a multiple of this number of steps; 0: never.
  int64_t exit_interval = 0;
  std::string kill_switch;            ///< the run ends when this file exists; empty: none
  bool universal_checkpoint = false;  ///< accepted without effect: every checkpoint is universal
  int64_t max_restarts = 0;
  int64_t restarted = 0;  ///< restarts so far; passed by the parent process that restarts this one
  std::string resume;     ///< a DIR, a step_N or "auto"; empty: a fresh start
  enum class Progress : uint8_t { automatic, on, off } progress = Progress::automatic;
  std::string autotuning;     ///< run or tune; empty: off. A config that enables it means run
  bool only_planned = false;  ///< the command is `plan`: it writes only --memory-json and --kernels

  /// Whether the flag, by its first name, or its key in a config is given.
  bool has(const std::string& flag) const { return given.contains(flag); }
  /// Whether a flag, a config, a checkpoint or a folder sets a row of the table.
  bool is_set(const std::string& name) const { return has(name) || sources.contains(name); }
  bool is_from_config(const std::string& name) const {
    const auto source = sources.find(name);
    return source != sources.end() && source->second == Source::config;
  }
  /// The ranks that share the data.
  int64_t data_axis() const { return ranks / axes.model_ranks(); }
  /// Whether this process writes the output: the first one, or the only one.
  bool is_first_process() const { return !process || process->rank == 0; }
};

/// The options of `finetune` before its flags are read.
TrainOptions finetune_options();

/// Whether the run takes no step and only converts the folder of --from-hf to a checkpoint. Such a
/// run needs no data.
bool is_import(const TrainOptions& options);

/// Parses the command line of train or finetune, and returns false after printing help. Throws
/// ConfigError; Unsupported for flags that this version knows but does not implement.
bool parse(const std::vector<std::string>& arguments, TrainOptions& options);

/// Like parse(), but reads no configs and files, and does not check processes or combinations of
/// flags.
bool parse_flags(const std::vector<std::string>& arguments, TrainOptions& options);

/// Reads the config and checks the flags. If a flag asks for checkpoints and --save is absent, sets
/// the default folder of checkpoints, which minGPT's trainer and Lightning use, too.
void complete(TrainOptions& options);

/// Throws ConfigError if the given flags contradict each other.
void check_train(const TrainOptions& options);

/// Sets the options that a resumed run takes from its checkpoint: those that no flag sets.
void adopt(const RunSpec& saved, TrainOptions& options);

/// Whether a kind of state is offloaded to a disk.
inline bool uses_disk(const zero::OffloadOptions& offload) {
  return offload.parameter == Space::file || offload.gradient == Space::file ||
         offload.optimizer == Space::file || offload.activation == Space::file;
}
/// Decides the location of each kind of state that no flag names, from --cpu-offload, a strategy
/// that offloads, and a config's cpu_checkpointing: optimizer states and gradients go to the host,
/// at stage 3 parameters too. Throws ConfigError when parameters are offloaded at a stage that does
/// not shard them.
void resolve_offload(TrainOptions& options);

}  // namespace zg::tools

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/batch_rampup.h"
#include "tools/drill.h"
#include "zerograd/autograd/pipeline.h"
#include "zerograd/models/data.h"
#include "zerograd/models/generate.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/processes.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/deepspeed.h"
#include "zerograd/zero/schedule.h"

namespace zg::tools {

struct DataOptions {
  std::string source;  ///< sort, adder, PATH.txt, PATH.bin or PREFIX; empty: not given
  models::Order order = models::Order::random;
  double validation_fraction = 0.1;
  std::array<double, 3> split = {969, 30, 1};  ///< of Megatron's PREFIX, as its --split
  std::string tokenizer;           ///< PATH of what text is read with; empty: its characters
  std::string tokenizer_checksum;  ///< of tools/tokenizers.h, once it was read
};

/// Sizes of 0 were not given. A model is a name or (layers, heads, width), of the family bloom
/// where that is the name.
struct ModelOptions {
  std::string model_type = "gpt-nano";
  int64_t layers = 0, heads = 0, width = 0;
  int64_t block_size = 0;     ///< 0: a BLOOM's own for text and tokens, else the data's
  int64_t max_positions = 0;  ///< Megatron's, which block_size has to be; 0: not given
  int64_t vocabulary = 0;     ///< 0: a BLOOM's own, else the data's
  // Absent: the model's own.
  std::optional<bool> tied;
  std::optional<models::Position> position;
  std::optional<bool> embedding_norm;  ///< no flag: of a checkpoint
  double dropout = 0.1;
};

/// How many samples a step takes, as far as it was given.
struct BatchOptions {
  std::optional<int64_t> micro, accumulation, train;
  BatchRampup rampup;
  /// Where a config says it, "ds.json:2:3: train_batch_size: "; empty: flags do.
  std::string place;
};

/// DeepSpeed's config, which flags override.
struct ConfigOptions {
  std::string path;  ///< empty: none
  zero::DeepSpeedVersion compat = zero::DeepSpeedVersion::v0_19;
  bool lenient = false;
};

/// How many ranks share the model; the data is shared by what remains.
struct Axes {
  int64_t tensor = 1, pipeline = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool sequence_parallel = false;

  int64_t model_ranks() const { return tensor * pipeline; }
};

struct PlaceOptions {
  Device::Type type = Device::Type::cpu;  ///< not meta
  Device::Options device;
};

struct OptimisationOptions {
  /// total_num_steps: the run's, where the schedule decays.
  zero::ScheduleOptions schedule{.rate = 5e-4};
  /// deepspeed, fsdp-mixed or fsdp-memory, which give the engine its dtypes; empty: its compute
  /// dtype says it all.
  std::string preset;
  zero::Config engine;

  std::string precision() const { return preset.empty() ? name_of(engine.compute) : preset; }
};

/// How much of the training data an epoch passes over, as Lightning's limit_train_batches.
struct EpochLimit {
  int64_t batches = 0;  ///< at most so many micro-batches of each rank; 0: all
  double share = 1.0;   ///< of them
};

/// Steps of a run, counted from 0.
struct StepRange {
  int64_t first = 0, end = 0;
  bool contains(int64_t step) const { return step >= first && step < end; }
};

struct OffloadFlags {
  bool cpu_offload = false;  ///< Lightning's: what the engine is not told goes to the host
  std::string nvme_path;
  bool cpu_checkpointing = false;  ///< DeepSpeed's: what checkpointed blocks keep does
};

/// Everything `train` can be told.
struct TrainOptions {
  Given given;
  Given defaulted;  ///< of given: by a default of the config, not by its text
  DataOptions data;
  ModelOptions model;
  std::string initial_weights;
  std::string from_hf;  ///< Hugging Face's folder; empty: none
  ConfigOptions config;
  zero::BucketsByWidth buckets;  ///< that a config leaves to the model
  BatchOptions batch;
  int64_t steps = 2000;
  double epochs = 0.0;        ///< 0: not given
  int64_t train_samples = 0;  ///< that the run ends before it would exceed; 0: not given
  EpochLimit epoch_limit;
  OptimisationOptions optimisation;
  OffloadFlags offload;
  bool activation_checkpoint = false;
  uint64_t seed = 3407;
  PlaceOptions place;
  int64_t ranks = 1;  ///< of all axes
  Axes axes;
  std::optional<ProcessPlace>
      process;  ///< the rank that this process is; absent: ranks are threads
  double comm_timeout_s = 60.0;
  bool dump_collectives = false;
  Drill drill;

  int64_t steps_per_print = 0;  ///< between DeepSpeed's two lines of progress; 0: none
  int64_t log_interval = 100, eval_interval = 0, sample_interval = 0;
  int64_t eval_batches = 20, score_samples = 5000;
  std::string metrics, trace;
  std::optional<StepRange> trace_steps;  ///< absent: a few after a warm-up
  std::string tensorboard;               ///< a folder of event files; empty: none
  bool dump_memory = false;
  std::string memory_json;
  std::string dump_gradients;                  ///< a path; empty: no
  std::optional<int64_t> dump_gradients_step;  ///< given with the path
  std::string save;
  int64_t save_interval = 0, save_top_k = 1;  ///< -1: keep every checkpoint
  bool async_save = false;
  int64_t exit_interval = 0;          ///< steps after which the run saves and ends; 0: never
  std::string kill_switch;            ///< a file whose coming ends the run; empty: none
  bool universal_checkpoint = false;  ///< every one is
  int64_t max_restarts = 0;
  int64_t restarted = 0;  ///< so often, by then; given: by the process that restarts this one
  std::string resume;     ///< a DIR, a step_N or "auto"; empty: start afresh
  enum class Progress : uint8_t { automatic, on, off } progress = Progress::automatic;
  std::string autotuning;     ///< run or tune; empty: no
  bool only_planned = false;  ///< nothing but --memory-json is written; --steps are walked anew

  int64_t data_ranks() const { return ranks / axes.model_ranks(); }
};

/// Whether a run takes no step but turns the folder of --from-hf into a checkpoint: then it needs
/// no data.
bool is_import(const TrainOptions& options);

/// `plan` takes train's flags; what they write is not written.
struct PlanOptions {
  TrainOptions train;
  bool explain = false;  ///< then --data may be absent
};

/// `tune` takes train's flags too.
struct TuneOptions {
  TrainOptions train;  ///< only the flags: configs are not read
  /// Those of train's that were given, by first name and in the order of the table, with their
  /// words.
  std::vector<std::pair<std::string, std::vector<std::string>>> flags;
  bool find_max_batch = false;
  double time_s = 120.0;
  std::string out = "tuned.json";
};

struct EvalOptions {
  Given given;
  std::string checkpoint;
  DataOptions data;
  ModelOptions model;
  int64_t batch = 64, batches = 0, score_samples = 5000;
  uint64_t seed = 3407;
  PlaceOptions place;
};

struct GenerateOptions {
  Given given;
  std::string checkpoint;
  std::string prompt;
  int64_t length = 200;
  models::SamplingOptions sampling;
  DataOptions data;
  ModelOptions model;
  PlaceOptions place;
};

/// Each fills its options; false after printing help. ConfigError, or Unsupported for flags that
/// this version knows and does not do.
bool parse(const std::vector<std::string>& arguments, TrainOptions& options);
bool parse(const std::vector<std::string>& arguments, PlanOptions& options);
bool parse(const std::vector<std::string>& arguments, TuneOptions& options);
bool parse(const std::vector<std::string>& arguments, EvalOptions& options);
bool parse(const std::vector<std::string>& arguments, GenerateOptions& options);

/// The same without a look at configs, files, processes and how the flags go together.
bool parse_flags(const std::vector<std::string>& arguments, TrainOptions& options);

/// For a command that takes some of train's flags: all of them, and ConfigError where those that
/// were given contradict each other.
std::vector<FlagGroup> train_groups(TrainOptions& options);
void check_train(const TrainOptions& options);

/// Decides where each kind of state goes that no flag names, by --cpu-offload, a strategy that
/// offloads and a config's cpu_checkpointing: optimizer and gradients to the host, at stage 3
/// parameters too. ConfigError for parameters of a stage that keeps them whole.
void settle_offload(TrainOptions& options);

}  // namespace zg::tools

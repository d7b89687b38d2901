#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/options/batch_rampup.h"
#include "tools/options/fault_injection.h"
#include "zerograd/autograd/pipeline.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/models/seq2seq/beam_search.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/device.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/deepspeed/deepspeed.h"
#include "zerograd/zero/optimizer/schedule.h"

namespace zg::tools {

struct DataOptions {
  std::string source;  ///< sort, adder, PATH.txt, .bin, .jsonl or PREFIX; empty: not given
  models::Order order = models::Order::random;
  double validation_fraction = 0.1;
  std::array<double, 3> split = {969, 30, 1};  ///< for Megatron's PREFIX, as Megatron's --split
  std::string tokenizer;  ///< PATH of the tokenizer for text; empty: one token per character
  /// checksum_of() from tools/run/tokenizers.h, set once the tokenizer is read.
  std::string tokenizer_checksum;
  // Conversations only.
  std::string validation_source;  ///< another PATH.jsonl to validate on; empty: the end of `source`
  bool pack = true;               ///< several conversations in a sequence
  std::string chat_format_path;   ///< empty: chat_format is as it is
  std::string chat_format;        ///< models::chat_format_json(); empty: no format
};

/// The mean that a step's loss and gradient are.
enum class LossMean : uint8_t {
  micro_batch,  ///< over micro-batches, of the means over their targets
  token         ///< over all targets of the step
};
inline const char* name_of(LossMean mean) {
  return mean == LossMean::token ? "token" : "micro_batch";
}

/// The model. A size of 0 means: not given. A model is given by its name or by (layers, heads,
/// width). Those sizes belong to the family bloom if the name is "bloom".
struct ModelOptions {
  std::string model_type = "gpt-nano";
  int64_t layers = 0, heads = 0, width = 0;
  int64_t block_size = 0;  ///< 0: a BLOOM's own length for text and tokens, else the data's
  /// Value of a flag of Megatron, which must equal block_size; 0: not given.
  int64_t max_positions = 0;
  int64_t vocabulary = 0;  ///< 0: a BLOOM's own vocabulary, else the data's
  // Absent: the default of the model.
  std::optional<bool> tied;
  std::optional<models::Position> position;
  std::optional<bool> embedding_norm;  ///< has no flag; set by a checkpoint
  // Llama's family; 0: the default of the model.
  int64_t kv_heads = 0, head_size = 0, hidden = 0, window = 0;
  double rope_theta = 0.0, norm_epsilon = 0.0;
  /// The model of a checkpoint or a Hugging Face folder, for fields that no flag has set.
  std::optional<models::GPTConfig> base;
  double dropout = -1.0;  ///< below 0: the default of the model, 0.1 or, in Llama's family, 0
};

/// An encoder-decoder model and its pairs; a decoder has the initial values.
struct Seq2SeqOptions {
  std::string config;      ///< config.json as models::hf_json() writes it; empty: a decoder
  std::string generation;  ///< generation_config.json of an imported model; empty: none
  std::string source_prefix;
  int64_t max_source = 0, max_target = 0;  ///< tokens; 0: 128, or the model's positions if fewer
  bool pad_to_max = false;  ///< false: a step's pairs are padded to the longest of them
  int64_t train_pairs = 0, validation_pairs = 0;  ///< the first N of each split; 0: all
  double label_smoothing = 0.0;
};

/// Adapters of a decoder (models/lora.h); a rank of 0: the model is trained as a whole.
/// Adapters that eval, generate and export read.
struct AdapterPaths {
  std::string adapter;  ///< path of a folder of PEFT; empty: none
  std::string base;     ///< where the base of a checkpoint's adapters is now; empty: as it was
};

struct LoraOptions {
  int64_t rank = 0;
  float alpha = 8.0f;
  float dropout = 0.0f;
  bool rank_stabilised = false;
  std::string targets;  ///< separated by commas; empty: PEFT's of the model's family
};

/// The batch numbers that were given.
struct BatchOptions {
  std::optional<int64_t> micro, accumulation, train;
  BatchRampup rampup;
  /// Position in a config, "ds.json:2:3: train_batch_size: "; empty: set by flags.
  std::string place;
};

/// DeepSpeed's config; flags override it.
struct ConfigOptions {
  std::string path;  ///< empty: none
  zero::DeepSpeedVersion compat = zero::DeepSpeedVersion::v0_19;
  bool lenient = false;
};

/// The axes along which ranks share the model; the remaining ranks share the data.
struct Axes {
  int64_t tensor = 1, pipeline = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool sequence_parallel = false;

  int64_t model_ranks() const { return tensor * pipeline; }
};

struct DeviceFlags {
  Device::Type type = Device::Type::cpu;  ///< not meta
  Device::Options device;
};

struct OptimisationOptions {
  /// total_num_steps is set from the run's length if the schedule decays.
  zero::ScheduleOptions schedule{.rate = 5e-4};
  /// deepspeed, fsdp-mixed or fsdp-memory, which set the engine's dtypes; empty: they follow from
  /// its compute dtype.
  std::string preset;
  zero::Config engine;

  std::string precision() const { return preset.empty() ? name_of(engine.compute) : preset; }
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

/// Tracking of Hugging Face's scripts: events for TensorBoard in a folder of the run's own.
struct Tracking {
  bool enabled = false;
  std::string service;            ///< "tensorboard", "all" (the same) or "none"; empty: not given
  std::string name = "zerograd";  ///< of the folder, in --output-dir
};

/// All options of `train`.
struct TrainOptions {
  bool finetunes = false;  ///< the command is `finetune`: train on conversations
  Given given;
  Given defaulted;  ///< those of `given` that were set by a config's defaults and not by its text
  DataOptions data;
  ModelOptions model;
  Seq2SeqOptions seq2seq;
  std::string initial_weights;
  std::string from_hf;  ///< path of a Hugging Face folder; empty: none
  LoraOptions lora;
  std::string initial_adapter;  ///< path of a folder of PEFT; empty: none
  std::string moved_base;       ///< path of the base of resumed adapters now; empty: as it was
  ConfigOptions config;
  zero::BucketsByWidth buckets;  ///< bucket sizes that a config leaves to the model
  BatchOptions batch;
  int64_t steps = 2000;
  double epochs = 0.0;        ///< 0: not given
  double warmup_ratio = 0.0;  ///< warmup steps as a share of the run's steps; 0: not given
  int64_t train_samples = 0;  ///< the run ends before it would exceed this number; 0: not given
  EpochLimit epoch_limit;
  std::optional<LossMean> loss_mean;  ///< absent: token for conversations, else micro_batch
  OptimisationOptions optimisation;
  int64_t max_bad_steps = 50;  ///< 0: the run never ends because of them
  OffloadFlags offload;
  bool activation_checkpoint = false;
  uint64_t seed = 3407;
  DeviceFlags device_flags;
  std::string matmul_algorithms;  ///< path of the file of algorithms for cuBLASLt; empty: none
  int64_t ranks = 1;              ///< all axes together
  Axes axes;
  std::optional<ProcessRank> process;  ///< the rank of this process; absent: ranks are threads
  double comm_timeout_s = 60.0;
  bool dump_collectives = false;
  FaultInjection injection;

  int64_t steps_per_print = 0;  ///< interval of DeepSpeed's two progress lines; 0: none
  int64_t log_interval = 100, eval_interval = 0, sample_interval = 0;
  int64_t eval_batches = 20, score_samples = 5000;
  std::string metrics, trace;
  std::optional<StepRange> trace_steps;  ///< absent: three steps after two of warm-up
  std::string tensorboard;               ///< folder of the event files; empty: none
  Tracking tracking;
  bool dump_memory = false;
  std::string memory_json, kernels;
  std::string dump_gradients;                  ///< output path; empty: none
  std::optional<int64_t> dump_gradients_step;  ///< given with the path
  std::string save;
  int64_t save_interval = 0, save_top_k = 1;  ///< -1: keep every checkpoint
  bool async_save = false;
  /// The run saves and ends after a multiple of this number of steps; 0: never.
  int64_t exit_interval = 0;
  std::string kill_switch;            ///< the run ends once this file exists; empty: none
  bool universal_checkpoint = false;  ///< accepted without effect: every checkpoint is universal
  int64_t max_restarts = 0;
  int64_t restarted = 0;  ///< restarts so far; passed by the parent process that restarts this one
  std::string resume;     ///< a DIR, a step_N or "auto"; empty: a fresh start
  enum class Progress : uint8_t { automatic, on, off } progress = Progress::automatic;
  std::string autotuning;     ///< run or tune; empty: off. A config that enables it says run
  bool only_planned = false;  ///< the command is `plan`: it writes only --memory-json and --kernels

  int64_t data_ranks() const { return ranks / axes.model_ranks(); }
  /// Whether this process writes the output: the first one, or the only one.
  bool is_first_process() const { return !process || process->rank == 0; }
};

/// Whether --data names conversations, which decoders learn; an encoder-decoder learns pairs.
bool is_conversations(const std::string& source);

/// The options of `finetune` before its flags are read.
TrainOptions finetune_options();

/// Whether the run takes no step and only converts the folder of --from-hf to a checkpoint. Such a
/// run needs no data.
bool is_import(const TrainOptions& options);

/// `plan` takes train's flags, but writes none of train's files.
struct PlanOptions {
  TrainOptions train;
  bool explain = false;  ///< --data is then optional
  std::string peaks;     ///< a file of rates, which predict the times of --kernels; empty: none
};

/// `tune` also takes train's flags.
struct TuneOptions {
  TrainOptions train;  ///< set by flags only; configs are not read
  /// The flags of train that were given, by first name and in the order of the table, with their
  /// words.
  std::vector<std::pair<std::string, std::vector<std::string>>> flags;
  bool find_max_batch = false;
  double time_s = 120.0;
  std::string out = "tuned.json";
};

/// How `eval` and `generate` keep a model.
struct InferenceOptions {
  std::optional<DType> dtype;  ///< in which weights are stored; absent: their own
  std::string memory_json;
  DeviceFlags device_flags;
  bool only_planned = false;  ///< `plan eval` and `plan generate`: nothing is read or computed
};

struct EvalOptions {
  Given given;
  std::string checkpoint;
  AdapterPaths adapters;
  DataOptions data;
  ModelOptions model;
  Seq2SeqOptions pairs;   ///< prefix and lengths
  std::string questions;  ///< path of multiple choice questions; empty: evaluate on data
  bool plain_questions = false;
  int64_t batch = 64, batches = 0, score_samples = 5000;
  uint64_t seed = 3407;
  InferenceOptions inference;
};

struct GenerateOptions {
  Given given;
  std::string checkpoint;
  AdapterPaths adapters;
  std::string prompt;
  bool chat = false;  ///< each line of stdin is a turn
  int64_t length = 200;
  bool test_performance = false;
  models::SamplingOptions sampling;
  models::BeamOptions search;  ///< of an encoder-decoder; the fields whose flags are given
  int64_t max_length = 0;      ///< the flag's value, with the first token; 0: not given
  DataOptions data;
  ModelOptions model;
  InferenceOptions inference;
};

/// Each parse() fills its options and returns false after printing help. Throws ConfigError;
/// Unsupported for flags that this version knows but does not implement.
bool parse(const std::vector<std::string>& arguments, TrainOptions& options);
bool parse(const std::vector<std::string>& arguments, PlanOptions& options);
bool parse(const std::vector<std::string>& arguments, TuneOptions& options);
bool parse(const std::vector<std::string>& arguments, EvalOptions& options);
bool parse(const std::vector<std::string>& arguments, GenerateOptions& options);

/// The same without reading configs and files, and without checking processes or combinations of
/// flags.
bool parse_flags(const std::vector<std::string>& arguments, TrainOptions& options);

/// For a command that accepts some of train's flags: the table of all flags, and a check that
/// throws ConfigError if the given ones contradict each other.
std::vector<FlagGroup> train_groups(TrainOptions& options);
void check_train(const TrainOptions& options);

/// Decides the location of each kind of state that no flag names, from --cpu-offload, a strategy
/// that offloads, and a config's cpu_checkpointing: optimizer states and gradients go to the host,
/// at stage 3 parameters too. Throws ConfigError when parameters are offloaded at a stage that does
/// not shard them.
void resolve_offload(TrainOptions& options);

}  // namespace zg::tools

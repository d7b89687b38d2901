#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "tools/run/data_file.h"
#include "zerograd/autograd/pipeline.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/zero/audit.h"
#include "zerograd/zero/batch_size.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/schedule.h"

namespace zg::tools {

using zero::BatchRampup;
using zero::Progress;

/// Parses START,INCREMENT,SAMPLES: "16,16,5000000". Throws ConfigError.
BatchRampup parse_rampup(const std::string& flag, const std::string& value);

/// Throws ConfigError if the growing batch does not reach the full batch exactly, or if a batch
/// size is not a multiple of micro-batch x ranks.
void check_rampup(const BatchRampup& rampup, const zero::BatchSize& size);

struct DataOptions {
  std::string source;  ///< sort, adder, PATH.txt, .bin, .jsonl or PREFIX; empty: not given
  models::Order order = models::Order::random;
  double validation_fraction = 0.1;
  std::array<double, 3> split = {969, 30, 1};  ///< for Megatron's PREFIX, as Megatron's --split
  std::string tokenizer;  ///< PATH of the tokenizer for text; empty: one token per character
  /// checksum_of() from tools/run/inputs.h, set when the tokenizer is read.
  std::string tokenizer_checksum;
  // Conversations only.
  std::string validation_source;  ///< another PATH.jsonl to validate on; empty: the end of `source`
  bool pack = true;               ///< several conversations in a sequence
  std::string chat_format_path;   ///< the file of the format; empty: none is given
  std::string chat_format;        ///< models::chat_format_json(); empty: no format
};

/// How the loss and the gradient of a step are averaged.
enum class LossMean : uint8_t {
  micro_batch,  ///< mean over micro-batches of the mean over the targets of each
  token         ///< mean over all targets of the step
};
inline const char* name_of(LossMean mean) {
  return mean == LossMean::token ? "token" : "micro_batch";
}

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
struct LoraOptions {
  int64_t rank = 0;
  float alpha = 8.0f;
  float dropout = 0.0f;
  bool rank_stabilised = false;
  std::string targets;  ///< names of layers, with commas; empty: PEFT's default for the family
};

/// The axes along which ranks share the model; the remaining ranks share the data.
struct Axes {
  int64_t tensor = 1, pipeline = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool sequence_parallel = false;
  int64_t reduction_groups = 0;  ///< models::TensorParallel::groups

  int64_t model_ranks() const { return tensor * pipeline; }
  bool is_mesh() const { return model_ranks() > 1 || reduction_groups > 1; }
};

/// A run: its model, data and training. Flags, a config and a checkpoint fill it; a checkpoint
/// stores it beside its tensors, so that resuming, eval and generate need only the checkpoint. The
/// initial values are a valid run. Each field is a row of the table in fields.h.
struct RunSpec {
  /// For an encoder-decoder: its sizes. `seq2seq` describes it.
  models::GPTConfig model;
  Seq2SeqOptions seq2seq;
  LoraOptions lora;
  /// The weights that the adapters are trained for. A checkpoint's info has it, beside the JSON.
  zero::CheckpointInfo::Base base;
  DataOptions data;
  /// The data's characters in order of token ids; empty if tokens are numbers.
  std::string characters;
  Contents contents;                     ///< size and checksum of the data file that the run read
  Contents validation_contents;          ///< those of --val-data; not known(): there is none
  models::SpecialTokens special_tokens;  ///< as imported; a tokenizer may override them
  /// models::tokenizer_json() of the data's tokenizer. Empty: there is none, or an older checkpoint
  /// was read. A checkpoint stores it in a separate file.
  std::string tokenizer_json;
  /// Stored in separate files, too: TokenizerParts::config, and the generation_config.json of an
  /// imported decoder.
  std::string tokenizer_config, generation_config;
  int64_t micro_batch = zero::default_micro_batch;
  int64_t accumulation = 1;  ///< for the full batch
  int64_t data_ranks = 1;    ///< ranks that share the data
  Axes axes;                 ///< numbers of ranks that share the model
  BatchRampup rampup;        ///< growth of the batch up to the full batch
  /// total_num_steps is set from the run's length if the schedule decays.
  zero::ScheduleOptions schedule{.rate = 5e-4};
  /// deepspeed, fsdp-mixed or fsdp-memory, which set the engine's dtypes; empty: they follow from
  /// its compute dtype.
  std::string preset;
  zero::Config engine;
  LossMean loss_mean = LossMean::micro_batch;
  Bits bits = Bits::portable;
  uint64_t seed = 3407;
  /// Checksum of --matmul-algorithms, which changes the order of sums; empty: none.
  std::string matmul_checksum;
  /// The step at which the run ends; 0: an older checkpoint, which does not store it.
  int64_t steps = 2000;
  double epochs = 0.0;          ///< the length in epochs, if it was given so; 0: it was not
  int64_t train_samples = 0;    ///< the length in samples, if it was given so; 0: it was not
  int64_t save_top_k = 1;       ///< -1: every checkpoint is kept
  int64_t samples = 0;          ///< samples consumed so far; the data continues there
  int64_t skipped_samples = 0;  ///< the part of `samples` that was consumed by skipped steps
  /// The value that --save-top-k compares: the last validation loss if there is one, else the loss
  /// of the last step. NaN: unknown.
  double loss = std::numeric_limits<double>::quiet_NaN();

  zero::UpdateOptions& update() { return engine.update; }
  std::string precision() const { return preset.empty() ? name_of(engine.compute) : preset; }
  /// The full batch.
  int64_t samples_per_step() const { return micro_batch * accumulation * data_ranks; }
  /// Samples of the next step, which may have a smaller batch during the ramp-up.
  int64_t step_samples() const { return rampup.batch_at(samples, samples_per_step()); }
  int64_t accumulation_after(int64_t consumed) const {
    return rampup.batch_at(consumed, samples_per_step()) / (samples_per_step() / accumulation);
  }
};

/// The settings of a model whose run is unknown: a file or folder that another program wrote. They
/// are also the values of the settings that an older checkpoint does not store.
RunSpec unknown_run();

std::string to_json(const RunSpec& spec);  ///< without tokenizer_json and base
/// Sets the settings of an audit, as JSON: those that may change bits, and the layout.
zero::AuditOptions audit_options(const RunSpec& spec, zero::AuditOptions audit = {});
/// Throws FileError.
RunSpec settings_from_json(const std::string& json, const std::string& path);

/// The settings as a checkpoint stores them, beside tensors and counters. Paths are made absolute,
/// so that they name the same files from any working directory.
zero::CheckpointInfo checkpoint_info(const RunSpec& spec);
/// Reads the settings from a checkpoint's info; errors name `path`. Throws FileError.
RunSpec settings_from(const zero::CheckpointInfo& info, const std::string& path);

/// A path as a checkpoint stores it: absolute, except for an empty one, sort and adder.
std::string absolute_path(const std::string& path);

/// Compares a resumed run with its checkpoint. Throws ConfigError when the model differs. Returns
/// all other differences, including the contents of the data file, as lines "run.rate: 0.0005 in
/// the checkpoint, 0.001 now".
std::vector<std::string> check_resumed(const RunSpec& saved, const RunSpec& now);

}  // namespace zg::tools

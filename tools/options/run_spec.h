#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "tools/options/options.h"
#include "tools/run/data_file.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/config.h"

namespace zg::tools {

/// The settings of a run, resolved to numbers. A checkpoint stores them beside its tensors, so that
/// resuming, eval and generate need only the checkpoint.
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
  Contents validation_contents;          ///< the same of --val-data; not known(): there is none
  models::SpecialTokens special_tokens;  ///< as imported; a tokenizer may override them
  /// models::tokenizer_json() of the data's tokenizer. Empty: there is none, or an older checkpoint
  /// was read. A checkpoint stores it in a separate file.
  std::string tokenizer_json;
  /// Stored so, too: TokenizerParts::config, and the generation_config.json of an imported decoder.
  std::string tokenizer_config, generation_config;
  int64_t micro_batch = 0;
  int64_t accumulation = 1;  ///< for the full batch
  int64_t data_ranks = 1;    ///< ranks that share the data
  Axes axes;                 ///< numbers of ranks that share the model
  BatchRampup rampup;        ///< growth of the batch up to the full batch
  OptimisationOptions optimisation;
  LossMean loss_mean = LossMean::micro_batch;
  uint64_t seed = 3407;
  /// Checksum of --matmul-algorithms, which changes the order of sums; empty: none.
  std::string matmul_checksum;
  /// The step at which the run ends; 0: an older checkpoint, which does not store it.
  int64_t steps = 0;
  double epochs = 0.0;          ///< the length in epochs, if it was given so; 0: it was not
  int64_t train_samples = 0;    ///< the length in samples, if it was given so; 0: it was not
  int64_t save_top_k = -1;      ///< -1: every checkpoint is kept, as in older versions
  int64_t samples = 0;          ///< samples consumed so far; the data continues there
  int64_t skipped_samples = 0;  ///< the part of `samples` that was consumed by skipped steps
  /// The value that --save-top-k compares: the last validation loss if there is one, else the loss
  /// of the last step. NaN: unknown.
  double loss = std::numeric_limits<double>::quiet_NaN();

  /// The full batch.
  int64_t samples_per_step() const { return micro_batch * accumulation * data_ranks; }
  /// Samples of the next step, which may have a smaller batch during the ramp-up.
  int64_t step_samples() const { return rampup.batch_at(samples, samples_per_step()); }
  int64_t step_accumulation() const { return accumulation_after(samples); }
  int64_t accumulation_after(int64_t consumed) const {
    return rampup.batch_at(consumed, samples_per_step()) / (samples_per_step() / accumulation);
  }
};

std::string to_json(const RunSpec& settings);  ///< without tokenizer_json and base
/// Throws FileError.
RunSpec settings_from_json(const std::string& json, const std::string& path);

/// The settings as a checkpoint stores them, beside tensors and counters. Paths are made absolute,
/// so that they name the same files from any working directory.
zero::CheckpointInfo checkpoint_info(const RunSpec& settings);
/// Reads the settings from a checkpoint's info; errors name `path`. Throws FileError.
RunSpec settings_from(const zero::CheckpointInfo& info, const std::string& path);

/// A path as a checkpoint stores it: absolute, except for an empty one, sort and adder.
std::string absolute_path(const std::string& path);

/// Sets the options that a resumed run takes from its checkpoint: those that no flag sets.
void adopt(const RunSpec& saved, TrainOptions& options);

/// Compares a resumed run with its checkpoint. Throws ConfigError when the model differs. Returns
/// all other differences, including the contents of the data file, as lines "run.rate: 0.0005 in
/// the checkpoint, 0.001 now".
std::vector<std::string> check_resumed(const RunSpec& saved, const RunSpec& now);

}  // namespace zg::tools

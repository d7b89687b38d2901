#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/lora.h"
#include "zerograd/runtime/command_line/flags.h"

// Flags that are not rows of the table (fields.h); functions that resolve and check several flags
// together.
namespace zg::tools {

// Flags that several subcommands share: data, model, device (model_flags.cpp).

/// The flag --tokenizer. The other files of a tokenizer in the same folder count as inputs, too.
Flag tokenizer_flag(Names names, const std::string& value, std::string& target,
                    const std::string& help);
/// f32, bf16 or f16. Throws ConfigError that begins with the flag's name.
DType parse_dtype(const std::string& name, const std::string& value);
/// A flag whose value is such a dtype. T: DType or std::optional<DType>.
template <class T>
Flag dtype_flag(Names names, T& dtype, const std::string& help) {
  return {std::move(names), "f32|bf16|f16", help,
          [&dtype](const std::string& name, const std::string& value) {
            dtype = parse_dtype(name, value);
          }};
}

/// The paths of a list "F,F".
std::vector<std::string> paths_in(const std::string& list);
/// The checkpoints that a path names, or the model's folder or file.
std::vector<NamedPath> checkpoints_in(const std::string& path);
/// A flag whose value is a checkpoint, a folder of them, a model's folder or a file of weights.
Flag checkpoint_flag(Names names, const std::string& value, std::string& target,
                     const std::string& help);
Flag checkpoint_positional(std::string& target);
/// The family of a name such as "bloom" or "llama", whose sizes come from flags; absent: no family.
std::optional<models::Family> family_named(const std::string& model_type);
bool is_family(const std::string& model_type);
/// Throws ConfigError if a family is named but not all sizes are given, or if only some sizes are
/// given.
void check_sizes(const TrainOptions& options);
/// Whether any of the sizes is set.
bool has_sizes(const TrainOptions& options);
/// The vocabulary of a named BLOOM; 0: the model has no vocabulary of its own.
int64_t own_vocabulary(const TrainOptions& options);
/// Throws ConfigError if both a model name and sizes are given.
void check_model(const TrainOptions& options);

/// --local-rank of torchrun's scripts and, if `one_rank`, --ranks. A value other than the default
/// is Unsupported, so that no flag is accepted and ignored.
FlagGroup unsupported_flags(bool one_rank);

// Encoder-decoder models and their pairs (seq2seq_flags.cpp).

/// The values of --model-type that are encoder-decoder models: presets, then families.
const std::vector<std::string>& seq2seq_names();
bool is_seq2seq_name(const std::string& model_type);
/// The family of "blenderbot" or "bart", whose sizes come from flags; absent: no such name.
std::optional<models::Seq2SeqFamily> seq2seq_family(const std::string& model_type);

/// Whether the run's model is an encoder-decoder: by its checkpoint, folder or name.
bool is_seq2seq(const TrainOptions& options);
/// The model and its settings for generating. options.config must not be empty. If
/// options.generation is empty, the model generates with its own special tokens, up to its
/// positions. Throws FileError.
models::HFSeq2Seq seq2seq_model(const Seq2SeqOptions& options);

/// Throws ConfigError if a flag of pairs is given.
void refuse_pair_flags(const Given& given);

/// Checks the flags that only decoders or only encoder-decoder models have. `origin`: the
/// checkpoint or folder that defines the model; empty: flags define it. Throws ConfigError;
/// Unsupported for a pipeline and settings that an encoder-decoder cannot have.
void check_seq2seq_flags(const TrainOptions& options, const std::string& origin);

/// Replaces the model's dropout on embeddings, residual branches and attention weights. A dropout
/// of 0 also turns off the dropout between the two products of a feed-forward layer.
void set_dropout(models::Seq2SeqConfig& config, double dropout);
void set_dropout(Seq2SeqOptions& options, double dropout);

/// Lists the keys of `expected`, a config.json, whose values differ in `there`: "rope_theta is 2.0,
/// expected 1.0; ...".
std::string differing_keys(const std::string& there, const std::string& expected,
                           bool (*ignores)(const std::string& key) = nullptr);
/// Checks that the weights of --init belong to the run's model, where one of the two models is an
/// encoder-decoder. Throws FileError with the keys that differ and the flags that match;
/// ConfigError for other special tokens.
void check_initial_seq2seq(const std::string& path, const Seq2SeqOptions& there,
                           const Seq2SeqOptions& run);

/// The model of a fresh run, by its name or sizes. Throws ConfigError without a vocabulary, and for
/// a size that the model cannot have. `tokens`: special tokens of the tokenizer; absent: those of
/// the preset or family.
models::Seq2SeqConfig fresh_seq2seq(const TrainOptions& options, int64_t tokenizer_vocabulary,
                                    const std::optional<models::Seq2SeqTokens>& tokens);

// Adapters (model_flags.cpp).

/// Convert LoraOptions to the library's type, and back.
models::LoraConfig lora_of(const LoraOptions& options);
LoraOptions lora_options(const models::LoraConfig& lora);

/// Sets options.lora to `adapter`, the adapters in the folder of --init-adapter, if that is given.
/// Throws ConfigError for a flag that differs from it, for flags of adapters without --lora, and
/// for adapters without a base; Unsupported for an encoder-decoder. Call it after the options of a
/// checkpoint are applied.
void resolve_lora(TrainOptions& options, const std::optional<LoraOptions>& adapter);

/// --adapter and --base of eval, generate and export.
Flag adapter_flag(AdapterPaths& paths);
Flag base_flag(AdapterPaths& paths);

// Flags of scripts (script_flags.cpp), and what several flags together mean for the optimisation
// (optimisation_flags.cpp).

/// Hugging Face's names of schedules.
Flag lr_scheduler_flag(zero::ScheduleOptions& schedule);
/// Sets the folder of TensorBoard's events that --with-tracking asks for. Throws ConfigError if no
/// flag names a folder.
void resolve_tracking(TrainOptions& options);
/// Other flags of Hugging Face's scripts. --do-train and --deepspeed have no effect; each other one
/// is an error that says what to write instead.
FlagGroup script_flags();
/// Such flags of eval and generate. --deepspeed has no effect; each other one is an error.
FlagGroup evaluation_script_flags();

/// Each of these flags selects AnnealingLR.
inline constexpr const char* annealing_flags[] = {"--lr-decay-style", "--lr-warmup-samples",
                                                  "--lr-decay-samples"};

/// Sets the engine's dtypes from --precision, then from --grad-accum-dtype, which overrides it.
void resolve_precision(TrainOptions& options);

/// Fills in the default warmup and end of a schedule. Call it after the options of a checkpoint are
/// applied. ConfigError where flags contradict each other or the checkpoint.
void resolve_schedule(TrainOptions& options);

/// Whether --offload-optimizer has states to place: moments, or masters beside 16-bit parameters.
bool keeps_optimizer_states(const zero::Config& engine);

/// A line for each given flag that has no effect in a run with this engine and that changes no
/// value, such as --prefetch-units below stage 3; and one for --speculation where it costs time.
std::vector<std::string> flags_without_effect(const TrainOptions& options,
                                              const zero::Config& engine);

// Command lines (given_flags.cpp).

/// The given flags of groups, in the order of the table, with their words, so that a command line
/// can be written again with some of them replaced.
class GivenFlags {
 public:
  /// Parsing then also adds the group's flags to this object, which must outlive it.
  FlagGroup recorded(FlagGroup group);
  std::vector<std::string> without(const std::set<std::string>& names) const;
  /// By first name.
  const std::vector<std::pair<std::string, std::vector<std::string>>>& all() const {
    return flags_;
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> flags_;
};

/// The words as a line for a shell, quoted where needed.
std::string shell_line(std::vector<std::string> words);

// Checks that no flag is accepted and ignored: ConfigError for a flag that would have no effect
// (run_checks.cpp).

/// Checks the flags about data that only some kinds of data use.
void check_data_flags(const TrainOptions& options, const models::Dataset& dataset);
void check_split_flags(const Given& given, const std::string& source, int64_t score_samples,
                       const models::Dataset& dataset);

/// Checks the flags that name a step: a run from step `first` (0: a fresh start, else the step of
/// `resumed`) to step `end` must reach it.
void check_step_flags(const TrainOptions& options, const std::string& resumed, int64_t first,
                      int64_t end);

/// Checks the flags of an optimizer's numbers: each optimizer has its own. `update`: of the
/// run, which may be that of a checkpoint or a config.
void check_optimizer_flags(const Given& given, const zero::UpdateOptions& update);

/// The reason for an early end other than a signal: the file of --kill-switch-path exists.
inline constexpr int kill_switch = 1 << 8;

bool kill_switch_exists(const std::string& kill_switch_path);  ///< false for an empty path
/// Throws ConfigError if the file exists at the start: every run would end at once. Megatron does
/// not start such a run either.
void refuse_kill_switch(const std::string& kill_switch_path);

}  // namespace zg::tools

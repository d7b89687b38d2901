#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/runtime/command_line/flags.h"

// The flags of encoder-decoder models and of their pairs.
namespace zg::tools {

/// The values of --model-type that are encoder-decoder models: presets, then families.
const std::vector<std::string>& seq2seq_names();
bool is_seq2seq_name(const std::string& model_type);
/// The family of "blenderbot" or "bart", whose sizes come from flags; absent: no such name.
std::optional<models::Seq2SeqFamily> seq2seq_family(const std::string& model_type);

/// Whether the run's model is an encoder-decoder: by its checkpoint, folder or name.
bool is_seq2seq(const TrainOptions& options);
/// The model and how it generates. `config` must not be empty. Without `generation` the model
/// generates with its own tokens, up to its positions. Throws FileError.
models::HFSeq2Seq seq2seq_model(const Seq2SeqOptions& options);

/// Throws ConfigError if a flag of pairs is given.
void refuse_pair_flags(const Given& given);

/// Checks the flags that decoders alone or encoder-decoder models alone have. `origin`: the
/// checkpoint or folder that says what the model is; empty: flags say it. Throws ConfigError;
/// Unsupported for a pipeline and settings that an encoder-decoder cannot have.
void check_seq2seq_flags(const TrainOptions& options, const std::string& origin);

/// Replaces the model's dropout on embeddings, residual branches and attention weights. 0 also
/// turns off that between the products of a feed-forward layer.
void set_dropout(models::Seq2SeqConfig& config, double dropout);
void set_dropout(Seq2SeqOptions& options, double dropout);

/// Checks that the weights of --init are of the run's model; at least one of both is an
/// encoder-decoder. Throws FileError with the fields that differ and the flags that match;
/// ConfigError for other special tokens.
void check_initial_seq2seq(const std::string& path, const Seq2SeqOptions& there,
                           const Seq2SeqOptions& run);

/// The model of a fresh run, by its name or sizes. Throws ConfigError without a vocabulary, and for
/// a size that the model cannot have. `tokens`: of the tokenizer; absent: those of the family.
models::Seq2SeqConfig fresh_seq2seq(const TrainOptions& options, int64_t tokenizer_vocabulary,
                                    const std::optional<models::Seq2SeqTokens>& tokens);

}  // namespace zg::tools

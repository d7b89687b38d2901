#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/run/setup.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"

// BPE for the command: chooses the tokenizer of a run, converts text to and from its
// tokens, and checks that the data has the tokens that trained weights know.
namespace zg::tools {

/// XXH3-128 of models::tokenizer_json() without the tokens around a text. It does not depend on the
/// file format that the tokenizer was read from.
std::string checksum_of(const models::Tokenizer& tokenizer);

/// The tokenizer for --tokenizer: read from a PATH, or for "train:SIZE" a GPT-2-like one with SIZE
/// tokens, trained on `text`.
models::Tokenizer tokenizer_named(const std::string& name, std::string_view text);

/// Reads the tokenizer that data.tokenizer names and fills data.tokenizer_checksum. If no flag
/// `named` it, the trained model's tokenizer is used, if any; checkpoints store a copy of theirs.
/// Throws ConfigError when the named tokenizer differs from the model's, or the model uses
/// characters. Throws FileError when the tokenizer of an older checkpoint does not exist any more.
/// A tokenizer with more tokens than the trained model is limited to the model's. Absent: there is
/// none.
std::optional<models::Tokenizer> resolve_tokenizer(DataOptions& data, const SavedModel* saved_model,
                                                   bool named);

/// Sets tokenizer_json and tokenizer_config, which a checkpoint stores.
void keep_tokenizer(const models::Tokenizer& tokenizer, RunSpec& settings);

/// resolve_tokenizer() for the tokenizer in a Hugging Face folder, if no flag named one. Only text
/// needs it: for other data a problem with it becomes a note, and no tokenizer is used.
std::optional<models::Tokenizer> folder_tokenizer(DataOptions& data, const SavedModel& folder,
                                                  std::vector<std::string>& notes);

/// The token that ends a response: eos_token of the tokenizer's config, else the first end token of
/// the trained model, else a token whose name says it. Absent: there is none.
std::optional<int32_t> end_token(const SavedModel* saved_model, const models::Tokenizer* tokenizer);

/// Throws ConfigError when the data has tokens that the tokenizer does not, or consists of a task's
/// problems instead of text.
void check_tokenizer(const DataOptions& data, const models::Tokenizer& tokenizer,
                     const models::Dataset& dataset);

/// Throws ConfigError when the data's tokens are not those of a trained model: more tokens, other
/// characters, or characters where the model uses a tokenizer or numbers.
void check_tokens(const SavedModel& saved_model, const DataOptions& data,
                  const models::Dataset& dataset);

/// For the weights of --init, which may know fewer characters than the run. Throws ConfigError when
/// an id means one token there and another in the run. Returns a note when only one of the two
/// stores the meaning of its tokens; empty: none.
std::string check_initial_tokens(const SavedModel& saved_model, const RunSpec& run);

/// The log line with the number of samples and how text became tokens.
std::string description_of(const DataOptions& data, const models::Dataset& dataset,
                           const std::optional<models::Tokenizer>& tokenizer);

}  // namespace zg::tools

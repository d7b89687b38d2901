#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/setup.h"
#include "zerograd/models/data.h"
#include "zerograd/models/text/tokenizer.h"

// Byte-level BPE of the command: which tokenizer a run has, text to and from its tokens, and
// whether the tokens of the data are those that trained weights know.
namespace zg::tools {

/// XXH3-128 of models::tokenizer_json(): the same whichever of its files a tokenizer was read from.
std::string checksum_of(const models::Tokenizer& tokenizer);

/// A PATH of --tokenizer's, or "train:SIZE": a GPT-2-like one of so many tokens, trained on `text`.
models::Tokenizer tokenizer_named(const std::string& name, std::string_view text);

/// Reads the tokenizer that data.tokenizer names and fills data.tokenizer_checksum. Where no flag
/// `named` it, it is that of the trained model, if there is one, and a checkpoint carries its own.
/// ConfigError when one that was named is another than the model's, or the model reads characters;
/// FileError when that of an older checkpoint is gone. Absent: there is none.
std::optional<models::Tokenizer> settle_tokenizer(DataOptions& data, const Known* known,
                                                  bool named);

/// settle_tokenizer() of a Hugging Face folder's own, where none was named. Only a text cannot do
/// without it: else what stands against it is a note, and it is left out.
std::optional<models::Tokenizer> folder_tokenizer(DataOptions& data, const Known& folder,
                                                  std::vector<std::string>& notes);

/// ConfigError when the data has other tokens than the tokenizer that is to say what they mean, or
/// answers instead of text.
void check_tokenizer(const DataOptions& data, const models::Tokenizer& tokenizer,
                     const models::Dataset& dataset);

/// ConfigError when the data does not have the tokens that a trained model knows: more of them,
/// other characters, or characters where the model knows something else.
void check_tokens(const Known& known, const DataOptions& data, const models::Dataset& dataset);

/// For weights of --init, which may know fewer characters than the run: ConfigError when an id
/// means one token there and another in the run. Returns a note where only one of the two says what
/// its tokens are; else nothing.
std::string check_initial_tokens(const Known& known, const Settings& run);

/// The line of a run that says how many samples it has and how text became their tokens.
std::string described(const DataOptions& data, const models::Dataset& dataset,
                      const std::optional<models::Tokenizer>& tokenizer);

}  // namespace zg::tools

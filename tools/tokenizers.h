#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"
#include "tools/settings.h"

// Byte-level BPE of the command: which one a run has, and text to and from its tokens.
namespace zg::tools {

/// XXH3-128 of all that a tokenizer is: the same whichever of its files it was read from.
std::string checksum_of(const models::Tokenizer& tokenizer);

/// A PATH of --tokenizer's, or "train:SIZE": a GPT-2-like one of so many tokens, trained on `text`.
models::Tokenizer tokenizer_named(const std::string& name, std::string_view text);

/// Fills data.tokenizer_checksum, by which a checkpoint knows its tokenizer again. With the
/// settings of a checkpoint: FileError when the tokenizer is gone, ConfigError when it is another,
/// or when the model knows characters. Returns its vocabulary; 0: the run has no tokenizer.
int64_t settle_tokenizer(DataOptions& data, const Settings* saved);

/// ConfigError when the data has other tokens than a tokenizer of so many, or answers instead of
/// text.
void check_tokenizer(const DataOptions& data, int64_t vocabulary, const models::Dataset& dataset);

/// A prompt's tokens, and the text of tokens as they come: `Characters` for a tokenizer.
class TokenizedText {
 public:
  explicit TokenizedText(models::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::vector<int32_t> encode(const std::string& prompt) const { return tokenizer_.encode(prompt); }
  /// What can be shown of all tokens so far and was not: a token may end within a character.
  std::string decode(int32_t token);
  /// What is left at the end.
  std::string rest();

 private:
  models::Tokenizer tokenizer_;
  std::string pending_;  // the begin of a character
};

}  // namespace zg::tools

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg::models {

/// A token that is looked for in the text before anything else: "<|endoftext|>".
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = true;      ///< stands for no text; Hugging Face's decode() may leave it out
  bool normalized = false;  ///< looked for after those that are not
};

/// Two tokens that stand side by side become one.
struct Merge {
  int32_t left = 0, right = 0, result = 0;
};

/// What a byte-level BPE tokenizer is made of, as Hugging Face's files have it.
struct TokenizerParts {
  std::vector<std::string> tokens;  ///< by id, in the characters of models/text/byte_alphabet.h
  std::vector<Merge> merges;        ///< by rank
  std::vector<AddedToken> added;    ///< their contents stand in `tokens` as they are
  std::string split;                ///< a regular expression for Oniguruma; empty: none
  bool gpt2_split = true;           ///< then GPT-2's own cuts what that left
  bool add_prefix_space = false;    ///< before each piece that begins with none
  bool ignore_merges = false;       ///< for words that are a token
};

/// Byte-level BPE as GPT-2 and BLOOM have it (Radford 2019): text to ids and back, the same ids as
/// Hugging Face's tokenizers. Any bytes come back from their ids. Copies share what they hold,
/// which never changes: threads may use one.
class ZG_API Tokenizer {
 public:
  /// FileError or Unsupported, beginning with `where`: ids out of range, a byte without a token, an
  /// added token that is empty, a split that models/text/split_pattern.h does not take.
  Tokenizer(TokenizerParts parts, const std::string& where);

  int64_t vocabulary() const;
  const TokenizerParts& parts() const;

  std::vector<int32_t> encode(std::string_view text) const;
  /// The bytes, which need not be UTF-8: a token may hold a part of a character. ConfigError for
  /// ids out of range.
  std::string decode(std::span<const int32_t> ids) const;
  /// Of an added token: "<|endoftext|>".
  std::optional<int32_t> id_of_added(std::string_view content) const;

 private:
  std::shared_ptr<const struct TokenizerState> state_;
};

struct TokenizerTraining {
  int64_t vocabulary = 32000;  ///< at most: a text may have fewer pairs that stand side by side
  std::vector<std::string> added = {"<|endoftext|>"};  ///< special; the first ids
  std::string split;                                   ///< as TokenizerParts has it
  bool gpt2_split = true;
  int64_t least_count = 2;  ///< of a pair that is merged
};
/// Merges the pair that stands side by side most often, the one of lower ids of equals, until the
/// vocabulary is full: the vocabulary of Hugging Face's BpeTrainer with all bytes as its alphabet.
/// ConfigError when there is no room for the added tokens and 256 bytes.
ZG_API Tokenizer train_tokenizer(std::string_view text, const TokenizerTraining& training);

/// The tables that \p{L}, \p{N} and the like follow: "14.0.0 (PCRE2 10.42 2022-12-11)".
ZG_API std::string unicode_tables();

}  // namespace zg::models

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

/// A token that encode() searches in the text before it splits the text into words:
/// "<|endoftext|>".
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = true;      ///< a control token; Hugging Face's decode() may omit it
  bool normalized = false;  ///< searched after the tokens that are not normalized
};

/// Merges two adjacent tokens into one.
struct Merge {
  int32_t left = 0, right = 0, result = 0;
};

/// The contents of a byte-level BPE tokenizer in Hugging Face's files.
struct TokenizerParts {
  std::vector<std::string> tokens;  ///< by id; each byte is written as one character (vocabulary.h)
  std::vector<Merge> merges;        ///< by rank
  std::vector<AddedToken> added;    ///< their contents are in `tokens` unchanged
  std::string split;                ///< a regular expression for Oniguruma; empty: none
  bool gpt2_split = true;           ///< true: GPT-2's pattern then splits the pieces again
  /// True: adds a space before each piece that does not begin with one.
  bool add_prefix_space = false;
  bool ignore_merges = false;  ///< true: a word that is a token is not split and merged
};

/// Byte-level BPE of GPT-2 and BLOOM (Radford 2019): text to ids and back, with the ids of Hugging
/// Face's tokenizers. Any byte sequence can be encoded and is restored by decode(). Copies share
/// immutable data, so several threads may use one tokenizer.
class ZG_API Tokenizer {
 public:
  /// Throws FileError or Unsupported, with a message that begins with `where`, for ids out of
  /// range, a byte without a token, an empty added token, or a split that
  /// models/tokenizer/split_pattern.h does not support.
  Tokenizer(TokenizerParts parts, const std::string& where);

  int64_t vocabulary() const;
  const TokenizerParts& parts() const;

  std::vector<int32_t> encode(std::string_view text) const;
  /// The bytes. They may be invalid UTF-8, because a token may hold only some bytes of a character.
  /// Throws ConfigError for ids out of range.
  std::string decode(std::span<const int32_t> ids) const;
  /// The id of an added token such as "<|endoftext|>"; absent: there is no such token.
  std::optional<int32_t> id_of_added(std::string_view content) const;

 private:
  std::shared_ptr<const struct TokenizerState> state_;
};

struct TokenizerTraining {
  int64_t vocabulary = 32000;  ///< upper limit; a short text may give fewer tokens
  std::vector<std::string> added = {"<|endoftext|>"};  ///< special tokens, which get the first ids
  std::string split;                                   ///< as in TokenizerParts
  bool gpt2_split = true;
  int64_t min_count = 2;  ///< a pair is merged only if it occurs at least this often
};
/// Repeatedly merges the most frequent adjacent pair (of equally frequent ones the pair with the
/// lower ids) until the vocabulary is full. The result is the vocabulary of Hugging Face's
/// BpeTrainer with all bytes as its alphabet. Throws ConfigError when the vocabulary is too small
/// for the added tokens and 256 bytes.
ZG_API Tokenizer train_tokenizer(std::string_view text, const TokenizerTraining& training);

/// Version of the Unicode tables used for `\p{L}`, `\p{N}`, ...: "14.0.0 (PCRE2 10.42 2022-12-11)".
ZG_API std::string unicode_tables();

}  // namespace zg::models

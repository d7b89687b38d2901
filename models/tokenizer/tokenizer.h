#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "zerograd/models/data/token_source.h"
#include "zerograd/runtime/api.h"

namespace zg::models {

/// A token that encode() searches in the text before it splits the text into words:
/// "<|endoftext|>".
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = true;  ///< a control token; Hugging Face's decode() may omit it
  /// True: its normalized content is searched in the normalized text, after the other tokens.
  bool normalized = false;
  bool single_word = false;  ///< found only where no letter, digit or "_" is beside it
  bool lstrip = false;       ///< white space before it belongs to it
  bool rstrip = false;       ///< white space after it belongs to it
  /// False: the file's model.vocab does not have it, so that only a search for it finds it.
  bool in_model = true;
};

/// Merges two adjacent tokens into one.
struct Merge {
  int32_t left = 0, right = 0, result = 0;
};

/// Unicode's canonical composition.
struct NFCStep {};
/// Adds a text before each text that is not empty.
struct PrependStep {
  std::string text;
};
/// Replaces each occurrence of `text`. A step of normalizers and of decoders.
struct ReplaceStep {
  std::string text, by;
};
using NormalizerStep = std::variant<NFCStep, PrependStep, ReplaceStep>;

/// Cuts where a pattern matches. `behavior` says which pieces result from matches and the text
/// between them.
struct SplitStep {
  enum class Behavior : uint8_t {
    isolated,              ///< each match and each text between is a piece
    removed,               ///< only the texts between are pieces
    merged_with_previous,  ///< a match ends the piece before it
    merged_with_next,      ///< a match begins the piece after it
    contiguous             ///< as isolated, with adjacent matches in one piece
  };
  std::string pattern;  ///< a regular expression for Oniguruma; or a text, if is_literal
  bool is_literal = false;
  Behavior behavior = Behavior::isolated;
  bool invert = false;  ///< matches and texts between change roles
};
/// Cuts digits from other characters: each into a piece of its own if `individual`.
struct DigitsStep {
  bool individual = false;
};
/// Writes bytes as characters (vocabulary.h). The last step of a byte-level BPE.
struct ByteLevelStep {
  bool add_prefix_space = false;  ///< a space before each piece that does not begin with one
  bool use_regex = true;          ///< cuts by GPT-2's pattern
};
/// Replaces spaces as SentencePiece does: each becomes `replacement`, and begins a piece if
/// `split`.
struct MetaspaceStep {
  /// Where `replacement` is added before a piece that does not begin with it.
  enum class Prepend : uint8_t {
    first,  ///< at the begin of the text
    never,
    always  ///< at each piece, and so behind each added token
  };
  std::string replacement = "\u2581";  ///< one character
  Prepend prepend = Prepend::always;
  bool split = true;
};
using PreTokenizerStep = std::variant<SplitStep, DigitsStep, ByteLevelStep, MetaspaceStep>;

/// Tokens such as <0x0A> become their bytes. In a run of them that is not UTF-8 each becomes
/// U+FFFD.
struct ByteFallbackStep {};
/// Joins the tokens. Later steps see one.
struct FuseStep {};
/// Removes up to `start` and `stop` times the character `content` at both ends of each token.
struct StripStep {
  std::string content;
  int64_t start = 0, stop = 0;
};
using DecoderStep = std::variant<ReplaceStep, ByteFallbackStep, FuseStep, StripStep, MetaspaceStep>;

/// Ids that a post_processor adds around those of a text, such as Llama's "<s>".
struct TextTemplate {
  std::vector<int32_t> before = {}, after = {};

  bool operator==(const TextTemplate&) const = default;
};

/// The contents of a BPE tokenizer in Hugging Face's files. Its tokens are made of bytes, or of
/// characters if the last pre-tokenizer is not ByteLevelStep.
struct TokenizerParts {
  std::vector<std::string> tokens;  ///< by id; byte-level: each byte as a character (vocabulary.h)
  std::vector<Merge> merges;        ///< by rank
  std::vector<AddedToken> added;    ///< their contents are in `tokens` unchanged
  std::vector<NormalizerStep> normalizers = {};
  std::vector<PreTokenizerStep> pre_tokenizers = {ByteLevelStep()};
  std::vector<DecoderStep> decoders = {};  ///< for tokens of characters
  /// The token of a character or byte that has none; absent: it is left out.
  std::optional<int32_t> unknown = {};
  bool fuse_unknown = false;   ///< one `unknown` for several in a row
  bool byte_fallback = false;  ///< before `unknown`, tries the tokens <0x00> to <0xFF>
  bool ignore_merges = false;  ///< true: a word that is a token is not split and merged
  TextTemplate around = {};    ///< encode() does not add it
  /// The JSON of the file's post_processor, if that adds tokens; empty: it does not.
  std::string post_processor = {};
  /// The object of tokenizer_config.json as JSON, with members of special_tokens_map.json and the
  /// text of chat_template.jinja; empty: there is none.
  std::string config = {};
};
/// True if tokens are made of bytes: the last pre-tokenizer is ByteLevelStep.
ZG_API bool is_byte_level(const TokenizerParts& parts);

/// BPE: text to ids and back, with the ids of Hugging Face's tokenizers. Byte-level for GPT-2
/// (Radford 2019), BLOOM, Llama 3, Qwen and SmolLM2; of characters for Llama 2 and Mistral, as
/// SentencePiece's (Kudo 2018, arXiv:1808.06226). Without a normalizer, byte-level BPE restores any
/// byte sequence in decode(). Copies share immutable data, so several threads may use one
/// tokenizer.
class ZG_API Tokenizer {
 public:
  /// Throws FileError or Unsupported, with a message that begins with `where`, for ids out of
  /// range, an empty added token, a ByteLevelStep that is not the last one, or a split that
  /// models/tokenizer/split_pattern.h does not support.
  Tokenizer(TokenizerParts parts, const std::string& where);

  int64_t vocabulary() const;  ///< the number of ids that encode() gives and decode() takes
  const TokenizerParts& parts() const;
  /// The tokenizer of a model whose table has fewer rows. Encoding a text that needs a token from
  /// `vocabulary` on throws ConfigError with the token and its line.
  Tokenizer limited_to(int64_t vocabulary) const;

  /// The ids of the text alone, without parts().around. Bytes that are not UTF-8 have tokens in
  /// byte-level BPE and with byte_fallback; otherwise they are unknown.
  std::vector<int32_t> encode(std::string_view text) const;
  /// encode(), with the bytes of `text` that each token stands for: whole characters, so that the
  /// tokens of a character's bytes have one span. They are the offsets of Hugging Face's tokenizers
  /// before a post_processor's trim_offsets, odd cases included: a character that a step adds has
  /// the span of its neighbour, and one that NFC composes the span of its first part.
  EncodedText encode_with_spans(std::string_view text) const;
  /// encode() with the ids of parts().around, as transformers' tokenizer(text) gives a document.
  std::vector<int32_t> encode_document(std::string_view text) const;
  /// The text, added tokens included. Byte-level: bytes that may be invalid UTF-8, because a token
  /// may hold only some bytes of a character. Throws ConfigError for ids out of range.
  std::string decode(std::span<const int32_t> ids) const;
  /// The bytes that one token adds to a text. `is_first`: it begins the text, where Llama 2 leaves
  /// out a space.
  std::string decode_one(int32_t id, bool is_first) const;
  /// The id of an added token such as "<|endoftext|>"; absent: there is no such token.
  std::optional<int32_t> id_of_added(std::string_view content) const;

 private:
  void check_ids(const std::vector<int32_t>& ids) const;

  std::shared_ptr<const struct TokenizerState> state_;
  int64_t vocabulary_;
};

struct TokenizerTraining {
  int64_t vocabulary = 32000;  ///< upper limit; a short text may give fewer tokens
  std::vector<std::string> added = {"<|endoftext|>"};  ///< special tokens, which get the first ids
  std::string split;       ///< a regular expression for Oniguruma; empty: none
  bool gpt2_split = true;  ///< GPT-2's pattern then splits the pieces again
  int64_t min_count = 2;   ///< a pair is merged only if it occurs at least this often
};
/// Repeatedly merges the most frequent adjacent pair (of equally frequent ones the pair with the
/// lower ids) until the vocabulary is full. The result is the vocabulary of Hugging Face's
/// BpeTrainer with all bytes as its alphabet. Throws ConfigError when the vocabulary is too small
/// for the added tokens and 256 bytes.
ZG_API Tokenizer train_tokenizer(std::string_view text, const TokenizerTraining& training);

/// Versions of the Unicode tables: those of `\p{L}`, `\p{N}`, ..., and those of normalizers:
/// "14.0.0 (PCRE2 10.42 2022-12-11), 15.0.0 (utf8proc 2.8.0)".
ZG_API std::string unicode_tables();

}  // namespace zg::models

#pragma once

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zerograd/models/tokenizer/split_pattern.h"
#include "zerograd/models/tokenizer/tokenizer.h"

// The steps between a text and the words that BPE merges, and between tokens and a text. They give
// the results of Hugging Face's tokenizers, odd cases included.
namespace zg::models {

/// A text that steps change. `origins` has the span of the original text that each byte stands for;
/// empty: origins are not recorded.
struct TracedText {
  std::string text;
  std::vector<TextSpan> origins = {};
};
/// A part of a text. `origins` points to the origin of its first byte; null: they are not recorded.
struct TracedView {
  std::string_view text;
  const TextSpan* origins = nullptr;

  TracedView() = default;
  TracedView(std::string_view part, const TextSpan* first) : text(part), origins(first) {}
  TracedView(const TracedText& whole)
      : text(whole.text), origins(whole.origins.empty() ? nullptr : whole.origins.data()) {}
  /// `part` is a part of `text`.
  TracedView at(std::string_view part) const {
    return {part, origins ? origins + (part.data() - text.data()) : nullptr};
  }
  TracedText copy() const;
};

/// Applies all steps. Bytes that are not UTF-8 stay as they are.
void normalize(TracedText& text, std::span<const NormalizerStep> steps);
std::string normalized(std::string_view text, std::span<const NormalizerStep> steps);
/// Replaces each occurrence of step.text, which is not empty.
void replace(TracedText& text, const ReplaceStep& step);
std::string replaced(std::string_view text, const ReplaceStep& step);
/// Adds characters before a text that is not empty.
void prepend(TracedText& text, const std::string& characters);
/// The bytes of the character at `at`; 1 for a byte that is not UTF-8, whose `code` is -1.
size_t character_size(std::string_view text, size_t at, int32_t* code = nullptr);
/// The first character in title case, the others in lower case, by Unicode's simple mappings.
/// Throws ConfigError for invalid UTF-8.
std::string capitalized(std::string_view text);
/// Throws Unsupported, with a message that begins with `where`, for steps that may make a text more
/// than 256 times longer. Throws FileError for a step that replaces the empty text.
void check_growth(std::span<const ReplaceStep> steps, const std::string& where);
/// Version of utf8proc and its Unicode tables: "15.0.0 (utf8proc 2.8.0)".
std::string normalizer_tables();

/// Finds added tokens in a text: the leftmost one, and the longest one at that position.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Takes each token whose field `normalized` equals the argument `normalized`.
  AddedTokens(std::span<const AddedToken> tokens, bool normalized,
              std::span<const NormalizerStep> steps);

  bool empty() const { return tokens_.empty(); }
  using OnText = std::function<void(std::string_view)>;
  using OnToken = std::function<void(int32_t, std::string_view)>;
  /// Calls `on_token` for each token, with its part of the text, and `on_text` for each text
  /// between, in order.
  void split(std::string_view text, const OnText& on_text, const OnToken& on_token) const;

 private:
  /// The longest token that the text, which is not empty, begins with. Null: none.
  const AddedToken* longest_at(std::string_view text) const;
  /// Finds the next token and moves `from` to its begin. Null: none.
  const AddedToken* find(std::string_view text, size_t& from) const;

  std::vector<AddedToken> tokens_;           // sorted by content
  std::array<uint32_t, 257> first_of_ = {};  // by first byte: index of its first token
};

/// Splits a text into the words that BPE merges.
class PreTokenizer {
 public:
  /// Errors begin with `where`: "tokenizer.json: pre_tokenizer".
  PreTokenizer(std::span<const PreTokenizerStep> steps, const std::string& where);

  using OnWord = std::function<void(const TracedView&)>;
  /// `begins_text`: nothing is before `text`. Words that are not a part of `text` are kept in
  /// `owned`.
  void for_words(const TracedView& text, bool begins_text, std::deque<TracedText>& owned,
                 const OnWord& on_word) const;

 private:
  /// A step: adds or replaces characters, then splits.
  struct Stage {
    std::optional<ByteLevelStep> prefix = {};
    std::optional<MetaspaceStep> metaspace = {};
    std::optional<Splitter> splitter = {};
    SplitStep::Behavior behavior = SplitStep::Behavior::isolated;
    bool invert = false;
  };
  struct Call;
  void add_split(const SplitStep& step, const std::string& where, Stage stage);
  TracedView changed(const Stage& stage, const TracedView& text, const Call& call) const;
  void run(size_t stage, const TracedView& text, const Call& call) const;

  std::vector<Stage> stages_;
};

/// Joins tokens of characters to a text.
class TokenDecoder {
 public:
  TokenDecoder(std::span<const DecoderStep> steps, const std::string& where);

  std::string decode(std::vector<std::string> tokens) const;
  /// The bytes that a token adds to a text. `is_first`: it begins the text.
  std::string piece(const std::string& token, bool is_first) const;

 private:
  std::vector<DecoderStep> steps_;
};

/// The byte of "<0x0A>"; absent: it is another token.
std::optional<unsigned char> byte_of_token(std::string_view token);

}  // namespace zg::models

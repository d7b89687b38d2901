#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace zg::models {

/// GPT-2's regular expression that splits a text into words.
extern const char* const gpt2_split_pattern;

/// Translates a regular expression of a tokenizer.json from Oniguruma's syntax to PCRE2's: nested
/// classes are flattened, and \s becomes Unicode's White_Space. Supported are literals, classes, \s
/// \S \d \D \p{general category}, ".", alternatives in groups and look-aheads, and quantifiers
/// after one character, whose counts add up to 1000. For anything else it throws Unsupported; the
/// message begins with `where`.
std::string pcre2_pattern(const std::string& oniguruma, const std::string& where);
/// A regular expression in Oniguruma's syntax that matches only `text`.
std::string literal_pattern(std::string_view text);

/// True for a character that \w of Rust's regex matches: Alphabetic, M, Nd, Pc or Join_Control
/// (Unicode TS 18).
bool is_word_character(char32_t code_point);
/// Unicode's White_Space.
bool is_white_space(char32_t code_point);

/// Version of PCRE2 and its Unicode tables: "14.0.0 (PCRE2 10.42 2022-12-11)".
std::string pattern_tables();

/// Splits a text at a regular expression: each match and each text between two matches is a piece,
/// as in Hugging Face's Split with behavior Isolated. Bytes that are not UTF-8 match nothing.
/// Copies share the compiled expression; several threads may use one.
class Splitter {
 public:
  /// `pattern` has Oniguruma's syntax. Throws Unsupported if it cannot be translated or can match
  /// an empty text; the message begins with `where`.
  Splitter(const std::string& pattern, const std::string& where);

  /// Iterates over the pieces of a text. The text must outlive this object.
  class Pieces {
   public:
    Pieces(const Splitter& splitter, std::string_view text);
    ~Pieces();
    /// The next piece, never empty; false at the end. Takes time linear in the text: throws
    /// ConfigError when the expression takes too many steps.
    bool next(std::string_view& piece);
    /// Whether the expression matched the last piece.
    bool is_match() const { return is_match_; }

   private:
    void next_valid_range();
    void match();
    int search(size_t& begin, size_t bytes, size_t steps, uint32_t options);
    int search_slowly(size_t begin);

    std::string_view text_;
    size_t at_ = 0;                     // where the next piece begins
    size_t valid_end_ = 0;              // end of the valid UTF-8 range that contains at_
    size_t match_ = 0, match_end_ = 0;  // the match at or after at_
    bool is_match_ = false;
    size_t steps_left_;  // the steps that are left to search_slowly()
    std::unique_ptr<struct SplitterState> state_;
  };

 private:
  std::shared_ptr<const struct SplitterCode> code_;
  std::string where_;
};

}  // namespace zg::models

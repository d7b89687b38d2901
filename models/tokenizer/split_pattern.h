#pragma once

#include <string>

namespace zg::models {

/// GPT-2's regular expression that splits a text into words.
extern const char* const gpt2_split_pattern;

/// Translates a regular expression of a tokenizer.json from Oniguruma's syntax to PCRE2's: nested
/// classes are flattened, and \s becomes Unicode's White_Space. Supported are literals, classes, \s
/// \S \d \D \p{general category}, ".", alternatives in groups and look-aheads, and quantifiers of
/// one character. Unsupported, beginning with `where`, for anything else.
std::string pcre2_pattern(const std::string& oniguruma, const std::string& where);

}  // namespace zg::models

#pragma once

#include <string>

namespace zg::models {

/// What splits a text into words in GPT-2.
extern const char* const gpt2_split_pattern;

/// A regular expression of a tokenizer.json, written for Oniguruma, as PCRE2 reads it: nested
/// classes flattened, \s as Unicode's White_Space. Taken are literals, classes, \s \S \d \D
/// \p{general category}, "." and alternatives in groups and look-aheads; quantifiers of one
/// character. Unsupported, beginning with `where`, for anything else.
std::string pcre2_pattern(const std::string& oniguruma, const std::string& where);

}  // namespace zg::models

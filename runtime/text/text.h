#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"

// Parts of messages: texts that others wrote, lists, the word that a misspelt one should be.
namespace zg {

/// A text that others wrote, as a message shows it: one line of at most `most` characters, then
/// "...". Controls, which a terminal would obey, and bytes that are no UTF-8 are written as \x1b.
ZG_API std::string printable(const std::string& text, size_t most = 40);

/// A message of any lines with what a terminal would obey written as \x1b: names in it may be
/// those of a file that others wrote.
std::string harmless(const std::string& message);

/// The candidate closest to `word` by edit distance when it is close enough to be a typing error
/// (or `word` is the beginning of just one); empty when none is.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// "; did you mean --steps?", or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);

std::string lower(std::string word);  ///< ASCII letters in lower case
std::string join(const std::vector<std::string>& parts, const std::string& separator);

/// Bytes as MiB with two decimals, without the unit.
std::string mib(int64_t bytes);
/// "1.5 GiB".
std::string gib(double bytes);

/// printf into a string.
[[gnu::format(printf, 1, 2)]] ZG_API std::string text(const char* format, ...);

}  // namespace zg

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"

// Parts of messages: quoted texts from files, lists, suggestions for misspelt words.
namespace zg {

/// A text from a file or a command line as a message shows it: one line of at most `most`
/// characters, then "...". Control characters, which a terminal would interpret, and bytes that are
/// not UTF-8 are written as \x1b.
ZG_API std::string printable(const std::string& text, size_t most = 40);

/// A message of several lines with control characters written as \x1b. runtime/text/print.h prints
/// it.
std::string escape_controls(const std::string& message);

/// The candidate for which `word` is probably a typing error: the one with the smallest edit
/// distance if that is small, or the only one that begins with `word`. Empty: there is none.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// "; did you mean --steps?", or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);

std::string lower(std::string word);  ///< ASCII letters in lower case
std::string join(const std::vector<std::string>& parts, const std::string& separator);
/// The same with another separator before the last part: "a, b or c".
std::string join(std::vector<std::string> parts, const std::string& separator,
                 const std::string& last);

/// Bytes as MiB with two decimals, without the unit.
std::string mib(int64_t bytes);
/// "1.5 GiB".
std::string gib(double bytes);

}  // namespace zg

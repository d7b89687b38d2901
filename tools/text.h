#pragma once

#include <string>

namespace zg::tools {

/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

/// What a message shows of a text that others wrote: one line of at most `most` characters, then
/// "...". Controls, which a terminal would obey, and bytes that are no UTF-8 are written as \x1b.
std::string printable(const std::string& text, size_t most = 40);

/// A message of any lines with what a terminal would obey written as \x1b: names in it may be
/// those of a file that others wrote.
std::string harmless(const std::string& message);

}  // namespace zg::tools

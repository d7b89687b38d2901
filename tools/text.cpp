#include "tools/text.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "zerograd/models/utf8.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {

std::string text(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string result(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  std::vsnprintf(result.data(), result.size() + 1, format, again);
  va_end(again);
  va_end(arguments);
  return result;
}

namespace {

/// Appends the character at a place, written as \x1b where a terminal would obey it or where it is
/// no UTF-8, and moves the place behind it. Those in `kept` stay as they are.
void append_shown(std::string& line, const std::string& source, size_t& at, const char* kept) {
  size_t end = at + 1;
  bool is_control = true;
  try {
    size_t next = at;
    const char32_t code = models::next_code_point(source, next, "");
    // Also what turns the direction of the text around it.
    const bool turns = code == 0x061c || code == 0x200e || code == 0x200f ||
                       (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    is_control = code < 0x20 || (code >= 0x7f && code < 0xa0) || turns;
    end = next;
  } catch (const ConfigError&) {  // a byte of something else
  }
  if (source[at] != '\0' && std::strchr(kept, source[at])) is_control = false;
  for (; at < end; ++at)
    line += is_control ? text("\\x%02x", static_cast<unsigned char>(source[at]))
                       : std::string(1, source[at]);
}

}  // namespace

std::string printable(const std::string& source, size_t most) {
  std::string line;
  size_t at = 0;
  for (size_t count = 0; at < source.size(); ++count) {
    if (count == most) return line + "...";
    append_shown(line, source, at, "");
  }
  return line;
}

std::string harmless(const std::string& message) {
  std::string result;
  for (size_t at = 0; at < message.size();) append_shown(result, message, at, "\n\t");
  return result;
}

}  // namespace zg::tools

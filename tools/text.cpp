#include "tools/text.h"

#include <cstdarg>
#include <cstdio>

#include "models/utf8.h"
#include "runtime/error.h"

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

std::string printable(const std::string& source, size_t most) {
  std::string line;
  size_t at = 0;
  for (size_t count = 0; at < source.size(); ++count) {
    if (count == most) return line + "...";
    size_t end = at + 1;
    bool is_control = true;
    try {
      size_t next = at;
      const char32_t code = models::next_code_point(source, next, "");
      is_control = code < 0x20 || (code >= 0x7f && code < 0xa0);
      end = next;
    } catch (const ConfigError&) {  // a byte of something else
    }
    for (; at < end; ++at)
      line += is_control ? text("\\x%02x", static_cast<unsigned char>(source[at]))
                         : std::string(1, source[at]);
  }
  return line;
}

std::string harmless(const std::string& message) {
  std::string result;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    const bool obeyed = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
    result += obeyed ? text("\\x%02x", byte) : std::string(1, c);
  }
  return result;
}

}  // namespace zg::tools

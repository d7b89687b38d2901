#pragma once

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::testing {

/// The position in a message such as "ds.json:12:5: ..."; zeros: the message has none.
struct Place {
  int line = 0, column = 0;
};

inline Place place_in(const std::string& message, const std::string& file) {
  Place place;
  char colon = 0;
  if (!message.starts_with(file + ":")) return place;
  std::istringstream rest(message.substr(file.size() + 1));
  if (rest >> place.line && rest.get(colon) && colon == ':' && std::isdigit(rest.peek()))
    rest >> place.column;
  return place;
}

/// True if the text has no control characters that a terminal or a log would interpret.
inline bool is_one_line(const std::string& text) {
  try {
    for (size_t at = 0; at < text.size();) {
      const char32_t code = next_code_point(text, at, "");
      if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
    }
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

/// The first thing that is wrong with an error about `source`: it has no position, no expectation
/// or no next step, or is longer than one short line. Empty: nothing. Errors of line-based readers
/// have no column.
inline std::string flaw_of(const std::string& message, const std::string& file,
                           const std::string& source, bool has_column = true) {
  const Place place = place_in(message, file);
  const auto is_break = [](char c) { return c == '\n' || c == '\r'; };
  const auto lines = 1 + std::ranges::count_if(source, is_break);
  if (place.line < 1 || place.line > lines) return "its line is none of the text";
  if (has_column && (place.column < 1 || place.column > static_cast<int>(source.size()) + 1))
    return "its column is none of the text";
  const auto has = [&](const char* words) { return message.find(words) != std::string::npos; };
  if (!has("expected ")) return "it does not say what was expected";
  if (has_column && !has("; try ") && !has("; did you mean ")) return "it has no advice";
  if (!is_one_line(message)) return "it is not a line of text";
  if (message.size() > 2000) return "it is long";
  return "";
}

}  // namespace zg::testing

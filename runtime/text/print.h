#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg {

/// Prints to stdout or stderr, with escape_controls() and a newline at the end unless there is one.
/// All lines go out here, because names from files that others wrote may be in them. Only help, the
/// progress line and the text that a model generates do not (tests/check_layers.py).
ZG_API void print_escaped(std::FILE* stream, const std::string& lines);

template <class... Args>
void print_line(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  print_escaped(stream, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace zg

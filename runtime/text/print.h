#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg {

/// Prints to stdout or stderr, with escape_controls() and a newline at the end unless there is one.
/// All lines are printed here, because they may contain names from files of unknown origin. Only
/// help, the progress line and the text that a model generates are printed directly
/// (tests/check_layers.py).
ZG_API void print_escaped(std::FILE* stream, const std::string& lines);

template <class... Args>
void print_line(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  print_escaped(stream, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace zg

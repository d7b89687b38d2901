#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/error.h"

// Messages are built by fmt::format(). This header is for sources: programs that embed the library
// need no {fmt}, so no public header includes it. Kernels that are compiled for several instruction
// sets (*_simd.cpp) do not include it either: the linker keeps one copy of an inline function, and
// that copy could need AVX-512.
namespace zg {

class Device;
class Shape;

template <class T>
concept HasName = requires(const T& value) {
  { name_of(value) } -> std::convertible_to<std::string_view>;
};

/// Formats values that have a name: an enumerator by its name_of(), "bf16"; a shape as "[8, 768]",
/// a device as "cuda:1".
template <HasName T>
std::string_view message_text(const T& value) {
  return name_of(value);
}
ZG_API std::string message_text(const Shape& shape);
ZG_API std::string message_text(const Device& device);

}  // namespace zg

/// Takes no width and no precision: "{}" only.
template <class T>
requires requires(const T& value) { zg::message_text(value); }
struct fmt::formatter<T> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  auto format(const T& value, fmt::format_context& context) const {
    const auto text = zg::message_text(value);
    return std::copy(text.begin(), text.end(), context.out());
  }
};

namespace zg {

/// Throws an E: raise<ConfigError>("--steps: expected {} or more, got {}", least, steps).
template <class E, class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> message, Args&&... args) {
  throw E(fmt::format(message, std::forward<Args>(args)...));
}

/// Prints to stdout or stderr, with escape_controls() and a newline at the end unless there is one.
/// All lines are printed here, because they may contain names from files of unknown origin. Only
/// help, the progress line and the text that a model generates are printed directly
/// (tests/check_layers.py).
ZG_API void print_escaped(std::FILE* stream, const std::string& lines);

template <class... Args>
void print_line(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  print_escaped(stream, fmt::format(format, std::forward<Args>(args)...));
}

// Parts of messages: quoted texts from files, lists, suggestions for misspelt words.

/// A text from a file or a command line as a message shows it: one line of at most `most`
/// characters, then "...". Control characters, which a terminal would interpret, and bytes that are
/// not UTF-8 are written as \x1b.
ZG_API std::string printable(const std::string& text, size_t most = 40);

/// A message of several lines with control characters written as \x1b.
std::string escape_controls(const std::string& message);

/// The candidate for which `word` is probably a typing error: the one with the smallest edit
/// distance if that is small, or the only one that begins with `word`. Empty: there is none.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// "; did you mean --steps?", or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);

std::string lower_case(std::string word);  ///< ASCII letters in lower case
std::string join(const std::vector<std::string>& parts, const std::string& separator);
/// The same with another separator before the last part: "a, b or c".
std::string join(std::vector<std::string> parts, const std::string& separator,
                 const std::string& last);

/// Bytes as MiB with two decimals, without the unit.
std::string mib(int64_t bytes);
/// "1.5 GiB".
std::string gib(double bytes);

}  // namespace zg

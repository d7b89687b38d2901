#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>

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

}  // namespace zg

#pragma once

#include <string>
#include <string_view>

#include "zerograd/runtime/api.h"

namespace zg {

constexpr size_t longest_utf8 = 4;  ///< bytes of a code point

/// The code point at byte `position` of UTF-8 text; moves `position` to the next one. Throws
/// ConfigError with `name` and the offset for what RFC 3629 forbids: stray or missing continuation
/// bytes, longer encodings than needed, surrogates, code points beyond U+10FFFF.
ZG_API char32_t next_code_point(std::string_view text, size_t& position, const std::string& name);

ZG_API std::string utf8(char32_t code_point);

/// Number of bytes at the beginning of a text that are whole code points.
ZG_API size_t valid_utf8(std::string_view text);
/// Number of bytes at the end of a text that begin an incomplete code point.
ZG_API size_t unfinished_utf8(std::string_view text);
/// Replaces invalid UTF-8 by U+FFFD: one for each incomplete code point and one for each other
/// invalid byte (Unicode 15, 3.9, "maximal subparts").
ZG_API std::string readable_utf8(std::string_view bytes);

}  // namespace zg

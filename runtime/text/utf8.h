#pragma once

#include <string>
#include <string_view>

#include "zerograd/runtime/api.h"

namespace zg {

constexpr size_t longest_utf8 = 4;  ///< bytes of a code point

/// The code point at byte `position` of UTF-8 text; moves `position` behind it. ConfigError with
/// `name` and the offset for what RFC 3629 forbids: stray or missing continuation bytes, longer
/// forms than needed, surrogates, beyond U+10FFFF.
ZG_API char32_t next_code_point(std::string_view text, size_t& position, const std::string& name);

ZG_API std::string utf8(char32_t code_point);

/// How many bytes at the begin of a text are whole code points.
ZG_API size_t valid_utf8(std::string_view text);
/// How many bytes at the end of a text are the begin of a code point: more may follow.
ZG_API size_t unfinished_utf8(std::string_view text);
/// With U+FFFD in place of what is no UTF-8, one for each begin of a code point that is cut short
/// and for each other byte (Unicode 15, 3.9, "maximal subparts").
ZG_API std::string readable_utf8(std::string_view bytes);

}  // namespace zg

#pragma once

#include <string>
#include <string_view>

#include "runtime/api.h"

namespace zg::models {

/// The code point at byte `position` of UTF-8 text; moves `position` behind it. ConfigError with
/// `name` and the offset for what RFC 3629 forbids: stray or missing continuation bytes, longer
/// forms than needed, surrogates, beyond U+10FFFF.
ZG_API char32_t next_code_point(std::string_view text, size_t& position, const std::string& name);

std::string utf8(char32_t code_point);

}  // namespace zg::models

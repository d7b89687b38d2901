#pragma once

#include <string>

namespace zg::tools {

/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

}  // namespace zg::tools

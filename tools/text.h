#pragma once

#include <string>

#include "zerograd/runtime/text.h"

namespace zg::tools {

/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

}  // namespace zg::tools

#pragma once

#include <string>

#include "tools/config/tree.h"

namespace zg::tools {

/// Reads JSON as DeepSpeed does, which is HJSON (https://hjson.github.io/syntax.html): comments
/// `#`, `//` and `/* */`, trailing and missing commas, keys and strings without quotes (such a
/// string goes to the end of its line), 'single' and '''multi-line''' quotes, a root without
/// braces. ConfigError with file, line, column and key path for anything else, for a key that
/// comes twice, for bytes that are not UTF-8, below 64 levels and beyond 1000 keys of an object.
Value read_hjson(const std::string& source, const std::string& file);

}  // namespace zg::tools

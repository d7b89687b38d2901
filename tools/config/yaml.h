#pragma once

#include <string>

#include "zerograd/zero/deepspeed/hjson.h"

namespace zg::tools {

/// Reads YAML as accelerate writes it, to the tree that read_hjson gives. ConfigError with file,
/// line and column for what is no YAML, for a key that comes twice, below 64 levels, beyond 1000
/// keys of an object, for anchors, bytes that are not UTF-8, and more than one document.
zero::deepspeed::Value read_yaml(const std::string& source, const std::string& file);

}  // namespace zg::tools

#pragma once

#include <string>

#include "zerograd/zero/deepspeed/hjson.h"

namespace zg::tools {

/// Reads YAML as accelerate writes it into the same tree as read_hjson(). ConfigError with file,
/// line and column for invalid YAML, repeated keys, more than 64 levels, more than 1000 keys in an
/// object, anchors, bytes that are not UTF-8, and more than one document.
zero::deepspeed::Value read_yaml(const std::string& source, const std::string& file);

}  // namespace zg::tools

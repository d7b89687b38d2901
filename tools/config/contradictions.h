#pragma once

#include <string>

#include "tools/config/check.h"

namespace zg::tools {

/// Keys that are right one by one and wrong together: ConfigError, or noted as unsupported.
void check_contradictions(CheckedConfig& config);

/// Keeps the first.
void note_unsupported(CheckedConfig& config, const std::string& message);

}  // namespace zg::tools

#pragma once

#include <vector>

#include "tools/command_line.h"
#include "tools/options.h"

namespace zg::tools {

/// Flags of how much a step takes and where a run ends.
std::vector<Flag> length_flags(TrainOptions& options);

/// ConfigError where a run is told two ends.
void check_length(const TrainOptions& options);

}  // namespace zg::tools

#pragma once

#include <vector>

#include "tools/command_line.h"
#include "tools/options.h"

namespace zg::tools {

/// Flags of how a run learns: rate, AdamW, clipping, dtypes, and where weights start.
std::vector<Flag> optimisation_flags(TrainOptions& options);

}  // namespace zg::tools

#pragma once

#include <vector>

#include "tools/flags.h"
#include "tools/options.h"

namespace zg::tools {

std::vector<Flag> axes_flags(Axes& axes);

/// ConfigError when the axes do not share out the ranks.
void check_axes(const TrainOptions& options);

}  // namespace zg::tools

#pragma once

#include <string>

#include "tools/tune_space.h"

namespace zg::tools {

/// DeepSpeed's config, JSON: the one of `run`, or an empty one, with this tuning in its keys; in a
/// section "zerograd" what DeepSpeed has no key for. What else flags said of `run` they go on
/// saying.
std::string config_with(const Tuning& tuning, const Run& run);

}  // namespace zg::tools

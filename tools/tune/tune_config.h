#pragma once

#include <string>

#include "tools/tune/tune_space.h"

namespace zg::tools {

/// A DeepSpeed config in JSON: the config of `run`, or an empty one, with this tuning in its keys.
/// A section "zerograd" holds the values that DeepSpeed has no key for. Other flags of `run` must
/// still be given as flags.
std::string config_with(const Tuning& tuning, const Run& run);

}  // namespace zg::tools

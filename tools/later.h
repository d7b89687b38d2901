#pragma once

#include "tools/command_line.h"

namespace zg::tools {

/// Flags of `train` whose work this version does not do. Each takes the values that ask for nothing
/// more than what happens anyway (--ranks 1, --offload-param none) and throws Unsupported naming
/// the flag for every other; none is ever accepted and ignored.
FlagGroup later_train_flags();

/// Those of them that say where a command runs: eval and generate know them too.
FlagGroup later_place_flags();

}  // namespace zg::tools

#pragma once

#include <vector>

#include "tools/options.h"

namespace zg::tools {

/// What the data is, and which of it is held out.
Flag source_flag(DataOptions& data);
std::vector<Flag> held_out_flags(DataOptions& data);
Flag tokenizer_flag(DataOptions& data);

}  // namespace zg::tools

#pragma once

#include <vector>

#include "tools/memory_json.h"
#include "tools/run.h"

namespace zg::tools {

/// What `plan` prints of a mesh: a Markdown table with a line per stage, bytes at the peak by
/// purpose and bytes received a step by axis, then the bubble.
std::string mesh_summary(const Run& run, const std::vector<RankMemory>& stages);

}  // namespace zg::tools

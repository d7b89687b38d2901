#pragma once

#include <vector>

#include "tools/memory_json.h"
#include "tools/run.h"

namespace zg::tools {

/// The text that `plan` prints for a mesh: a Markdown table with a row per pipeline stage, its peak
/// bytes by purpose and the bytes received in a step by axis, then the pipeline bubble.
std::string mesh_summary(const Run& run, const std::vector<RankMemory>& stages);

}  // namespace zg::tools

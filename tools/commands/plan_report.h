#pragma once

#include <string>
#include <vector>

#include "tools/output/memory_json.h"
#include "tools/run/run.h"

namespace zg::tools {

/// ZeRO's memory formula and ours at the paper's model size, and the dtypes of the precision
/// presets. Markdown.
std::string explain_formulas();

/// The same formulas at the run's size, and the resting bytes of the planned rank, exact to the
/// byte.
std::string explain_run(const Run& run, int64_t parameters, const RankMemory& memory);

/// The text that `plan` prints for a mesh: a Markdown table with a row per pipeline stage, its peak
/// bytes by purpose and the bytes received in a step by axis, then the pipeline bubble.
std::string mesh_summary(const Run& run, const std::vector<RankMemory>& stages);

}  // namespace zg::tools

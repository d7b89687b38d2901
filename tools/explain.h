#pragma once

#include <string>

#include "tools/memory_json.h"
#include "tools/run.h"

namespace zg::tools {

/// ZeRO's formula at its paper's size beside ours, and the dtypes of the precision presets.
/// Markdown.
std::string explain_formulas();

/// The same formulas at the run's size, and what the walked rank rests on to the byte.
std::string explain_run(const Run& run, int64_t parameters, const RankMemory& memory);

}  // namespace zg::tools

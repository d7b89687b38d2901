#pragma once

#include <optional>
#include <string>

#include "tools/memory_json.h"
#include "tools/run.h"

namespace zg::tools {

/// Walks the run's steps as rank `rank` on a device without memory: the same code, so the same
/// bytes as a real run's. Limits are not applied. Of a run without steps also its end, which
/// reserves less than a step does.
RankMemory walk(const Run& run, int rank);

/// Three steps like the run's largest, which a batch that grows may come to after all that a walk
/// takes: what they need, the run needs.
Run largest_steps(const Run& run);

/// One rank of each stage of the run's pipeline, in their order: data and tensor rank 0, which no
/// other rank of the stage exceeds.
std::vector<RankMemory> walk_stages(const Run& run);

/// What --memory-json says of a run beside its ranks.
MemoryRecord memory_record(const Run& run, std::vector<RankMemory> ranks);

Needs needs_of(const RankMemory& memory);

/// Whether the run's --device-memory and --host-memory suffice for what a walk took.
bool fits(const Run& run, const RankMemory& memory);

/// Among the ZeRO stages, and then with --activation-checkpoint, the first setting of the run that
/// fits its limits: flags for train. Absent: none does.
std::optional<std::string> smallest_fitting(const Run& run);

}  // namespace zg::tools

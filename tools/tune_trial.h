#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/tune_plan.h"

namespace zg::tools {

/// A planned setting, run for real.
struct Trial {
  Planned plan;
  int64_t predicted_rank;             ///< from 1
  std::string failure;                ///< "OutOfMemory: ..." or "no end after 12 s"; empty: it ran
  int64_t peak_bytes = 0;             ///< of rank 0, reserved
  double seconds = 0.0;               ///< of a step, the median of those after the first two
  double fast_s = 0.0, slow_s = 0.0;  ///< their first and third quartile
  int signal = 0;                     ///< that this process got meanwhile, as ChildEnd's

  double samples_per_s(const Run& run) const;  ///< 0: it failed
};

/// Trains with `flags` in a child for about `seconds` of steps, and for `limit_s` at most with all
/// around them. The child writes nothing and cannot outlive this process.
Trial try_out(const Planned& plan, std::vector<std::string> flags, double seconds, double limit_s);

/// Markdown: the fastest first and then what failed.
std::string table_of(std::vector<Trial> trials, const Run& run);

}  // namespace zg::tools

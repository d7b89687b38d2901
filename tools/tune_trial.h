#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/tune_plan.h"

namespace zg::tools {

/// The result of training with a planned setting.
struct Trial {
  Planned plan;
  int64_t predicted_rank;  ///< rank by predicted time, from 1
  std::string failure;     ///< "OutOfMemory: ..." or "no end after 12 s"; empty: it succeeded
  int64_t peak_bytes = 0;  ///< reserved bytes of rank 0
  double seconds = 0.0;    ///< median time of a step, without the first two
  double fast_s = 0.0, slow_s = 0.0;  ///< first and third quartile of those times
  int signal = 0;  ///< a signal that this process received meanwhile, as in ChildEnd

  double samples_per_s(const Run& run) const;  ///< 0: the trial failed
};

/// Trains with `flags` in a child. Its steps take about `seconds`; with start and end it may take
/// `limit_s`. The child writes nothing and is killed if this process dies.
Trial try_out(const Planned& plan, std::vector<std::string> flags, double seconds, double limit_s);

/// Markdown table: successful trials, fastest first, then failed ones.
std::string table_of(std::vector<Trial> trials, const Run& run);

}  // namespace zg::tools

#pragma once

#include <string>
#include <vector>

#include "tests/tools/command.h"

// Runs of the command on an emulated accelerator. The emulator is about a thousand times slower
// than a real one, so batches are small.
namespace zg::testing {

inline const std::string sort_run =
    "train --data sort --model-type gpt-nano --batch-size 4 --log-interval 0 --score-samples 0 "
    "--progress off ";

/// The losses of a run, from its metrics.
inline std::vector<double> losses_of(const std::string& metrics) {
  std::vector<double> losses;
  for (const nlohmann::json& line : json_lines(metrics))
    if (line.contains("loss")) losses.push_back(line["loss"]);
  return losses;
}

}  // namespace zg::testing

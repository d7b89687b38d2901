#pragma once

#include <doctest/doctest.h>

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

/// Runs the command, which must succeed, and returns its param_hash.
inline std::string hash_of(const std::string& line) {
  const Outcome outcome = zerograd(line);
  CAPTURE(line);
  CAPTURE(outcome.error);
  REQUIRE(outcome.status == 0);
  const std::string hash = line_after(outcome.out, "param_hash ");
  CHECK(hash.size() == 32);
  return hash;
}

}  // namespace zg::testing

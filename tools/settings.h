#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "models/gpt.h"
#include "tools/options.h"
#include "zero/config.h"

namespace zg::tools {

/// What a run is, resolved to numbers: what a checkpoint holds besides tensors, so that resuming,
/// eval and generate need nothing but the checkpoint.
struct Settings {
  models::GPTConfig model;
  DataOptions data;
  std::string characters;  ///< of the data, in order of token ids; empty when tokens are numbers
  int64_t micro_batch = 0, accumulation = 1, ranks = 1;
  OptimisationOptions optimisation;
  uint64_t seed = 3407;
  int64_t samples = 0;  ///< consumed so far: where the data goes on
  /// What --save-top-k compares: the last validation's loss when there are any, else the last
  /// step's. NaN: unknown.
  double loss = std::numeric_limits<double>::quiet_NaN();

  int64_t samples_per_step() const { return micro_batch * accumulation * ranks; }
};

std::string to_json(const Settings& settings);
Settings settings_from_json(const std::string& json, const std::string& path);  ///< FileError

/// Compares a resumed run with its checkpoint: ConfigError when model or characters differ; what
/// else differs comes back as lines "run.rate: 0.0005 in the checkpoint, 0.001 now".
std::vector<std::string> check_resumed(const Settings& saved, const Settings& now);

}  // namespace zg::tools

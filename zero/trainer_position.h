#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "zerograd/runtime/api.h"
#include "zerograd/zero/checkpoint/checkpoint_info.h"

namespace zg::zero {

/// Progress of a run, in addition to the engine's state. Saved in a checkpoint.
struct TrainerPosition {
  int64_t samples = 0;          ///< consumed by all ranks
  int64_t skipped_samples = 0;  ///< samples of skipped steps, included in `samples`
  int64_t micro_batches = 0;    ///< consumed by all ranks
  /// The score by which retention compares checkpoints: the last step's mean loss, or the value of
  /// set_score(). NaN: unknown.
  double score = std::numeric_limits<double>::quiet_NaN();
};

/// The position in a checkpoint without a program's settings.
ZG_API CheckpointInfo description_of(const TrainerPosition& position);
/// Reads it; errors name `path`. Throws FileError.
ZG_API TrainerPosition position_in(const CheckpointInfo& info, const std::string& path);

}  // namespace zg::zero

#pragma once

#include <cstdint>
#include <optional>

#include "zerograd/runtime/device.h"

namespace zg::zero {

/// One optimizer step that was attempted, for metrics.
struct StepRecord {
  int64_t step;         ///< from 0
  int64_t micro_steps;  ///< micro-batches of this step on each rank
  int64_t samples;      ///< samples of this step on all ranks
  double loss;  ///< mean over the micro-batches of the mean loss over targets, added in order
  double grad_norm, rate;
  double loss_scale;  ///< f16: scale in this step; f32: 1; bf16: 0
  bool skipped;
  double tokens_per_second, seconds;
  int64_t peak_bytes, host_peak_bytes;  ///< largest number of live bytes during the step
  int64_t reduction_groups = 0;         ///< with which the model sums; 0: without groups
  Bits bits = Bits::portable;
  /// Steps of this process that were redone so far (Engine::speculated()); absent: no speculation.
  std::optional<int64_t> redone = {};
  bool resumed = false;  ///< the first step of a process that has resumed the run
};

}  // namespace zg::zero

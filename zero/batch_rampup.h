#pragma once

#include <cstdint>

#include "zerograd/runtime/api.h"

namespace zg::zero {

/// A batch that grows: the samples of a step grow with those consumed, from `start` by `increment`
/// to the whole batch, each size for an equal share of the first `samples` samples. Megatron-LM's
/// --rampup-batch-size, rounded as there. The steps must end at the whole batch: `increment`
/// divides whole - start.
struct ZG_API BatchRampup {
  int64_t start = 0;  ///< 0: every step has the whole batch
  int64_t increment = 0, samples = 0;

  /// The batch of the step that begins after so many samples: a function of them alone, so that a
  /// checkpoint needs to keep nothing else.
  int64_t batch_at(int64_t consumed, int64_t whole) const;
  /// The largest number that divides every step of the way to the whole batch, and it.
  int64_t common(int64_t whole) const;
};

/// How far a run is.
struct Progress {
  int64_t steps = 0, samples = 0;
};

/// From `now` on the last place that is beyond neither number of `end`.
ZG_API Progress advanced(const BatchRampup& rampup, int64_t whole, Progress now, Progress end);

}  // namespace zg::zero

#pragma once

#include <cstdint>
#include <string>

#include "tools/batch_size.h"

namespace zg::tools {

/// Megatron's --rampup-batch-size: the samples of a step grow with those consumed, from `start` by
/// `increment` to the whole batch, in equal numbers of samples that are `samples` together.
struct BatchRampup {
  int64_t start = 0;  ///< 0: every step has the whole batch
  int64_t increment = 0, samples = 0;

  /// Of the step that begins after so many samples: a function of them alone, so nothing of it is
  /// state that a checkpoint would have to hold.
  int64_t batch_at(int64_t consumed, int64_t whole) const;
  /// The largest number that divides every step of the way to the whole batch, and it.
  int64_t common(int64_t whole) const;
};

/// "16,16,5000000". ConfigError.
BatchRampup parse_rampup(const std::string& flag, const std::string& value);

/// ConfigError where the steps do not end at the whole batch, or one of them is no whole number of
/// micro-batches of every rank.
void check_rampup(const BatchRampup& rampup, const BatchSize& size);

/// How far a run is.
struct Progress {
  int64_t steps = 0, samples = 0;
};

/// From `now` on the last place that is beyond neither number of `end`.
Progress advanced(const BatchRampup& rampup, int64_t whole, Progress now, Progress end);

}  // namespace zg::tools

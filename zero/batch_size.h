#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg::zero {

/// Samples of a micro-batch if nothing sets the number.
inline constexpr int64_t default_micro_batch = 64;

/// The batch numbers that the user gave: samples of a micro-batch (`micro`), micro-batches of each
/// rank in a step (`accumulation`), samples of a step on all ranks (`train`).
struct BatchRequest {
  std::optional<int64_t> micro = {}, accumulation = {}, train = {};
  std::string place = "batch size: ";  ///< beginning of errors: "ds.json:2:3: train_batch_size: "
  /// The names of the numbers in errors: by default DeepSpeed's keys.
  struct Names {
    std::string micro = "train_micro_batch_size_per_gpu";
    std::string accumulation = "gradient_accumulation_steps";
    std::string train = "train_batch_size";
  } names = {};
};

/// For TrainerOptions::micro_batch and accumulation.
struct BatchSize {
  int64_t micro, accumulation, train;  ///< train = micro * accumulation * ranks
};

/// Computes the numbers that are not given, as DeepSpeed does for its seven combinations. `ranks`
/// is the number of ranks on the data axis. Throws ConfigError if the given numbers contradict each
/// other, or if neither `train` nor `micro` is given; the message has the given numbers, values
/// that would work, and DeepSpeed's own words.
ZG_API BatchSize solve_batch_size(const BatchRequest& request, int64_t ranks);

/// The largest number up to `limit` that divides `number`; both are above 0.
ZG_API int64_t largest_divisor(int64_t number, int64_t limit);

/// A batch that grows during training, as by Megatron-LM's --rampup-batch-size, with the same
/// rounding. A step has `start` samples at first; the number grows by `increment` up to the whole
/// batch. Each size is used for an equal share of the first `samples` samples. `increment` must
/// divide whole - start.
struct ZG_API BatchRampup {
  int64_t start = 0;  ///< 0: every step has the whole batch
  int64_t increment = 0, samples = 0;

  /// Samples of the step that begins after `consumed` samples. `whole` is the final batch. It
  /// depends on nothing else, so a checkpoint only stores the number of consumed samples.
  int64_t batch_at(int64_t consumed, int64_t whole) const;
  /// The greatest common divisor of all batch sizes from `start` to `whole`.
  int64_t common(int64_t whole) const;
};

/// Progress of a run: steps and samples done.
struct Progress {
  int64_t steps = 0, samples = 0;
};

/// The progress after as many steps from `now` on as are possible without exceeding the steps or
/// the samples of `end`.
ZG_API Progress advanced(const BatchRampup& rampup, int64_t whole, Progress now, Progress end);

}  // namespace zg::zero

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg::zero {

/// Samples of a micro-batch where nothing says how many.
inline constexpr int64_t default_micro_batch = 64;

/// The three numbers as far as they are given: samples of a micro-batch, micro-batches of each rank
/// in a step, all samples of a step.
struct BatchRequest {
  std::optional<int64_t> micro = {}, accumulation = {}, train = {};
  std::string place = "batch size: ";  ///< how errors begin: "ds.json:2:3: train_batch_size: "
  /// The numbers' names in errors: DeepSpeed's keys, or a program's own words.
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

/// DeepSpeed's seven cases: what is not given follows from the rest. `ranks`: those of the data
/// axis. ConfigError with what was given, what would solve it, and DeepSpeed's words; also where
/// neither `train` nor `micro` is given.
ZG_API BatchSize solve_batch_size(const BatchRequest& request, int64_t ranks);

/// The largest number up to `most` that divides `number`; both are above 0.
ZG_API int64_t largest_divisor(int64_t number, int64_t most);

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

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/run/run.h"
#include "zerograd/zero/advise.h"

// The search of zerograd tune.
namespace zg::tools {

// Settings, and their plans (tune_plan.cpp).

// `tune` varies the stage, the offloads, activation checkpointing, the micro-batch with the
// accumulation, and the bucket sizes.

/// The flags to add to the command line of `run` for this setting: stage and micro-batch, unless
/// they were given, and those other values that differ from the run's.
std::vector<std::string> tuned_flags(const zero::Setting& setting, const Run& run);

/// Number of values that differ from the run as given: stage, each offload location, checkpointing,
/// micro-batch, each bucket.
int deviations_of(const zero::Setting& setting, const Run& run);

/// A description of the setting for the user.
std::string description_of(const zero::Setting& setting, const Run& run);

/// The ZeRO stages to try: the run's own if the stage was given; else only 3 if the run offloads
/// parameters; else 0 and 3 with one rank, where 1 and 2 equal 0; else 0 and 1 if gradients are
/// reduced at the boundary; else all.
std::vector<int> stages_of(const Run& run);

/// A DeepSpeed config in JSON: the config of `run`, or an empty one, with this setting in its keys.
/// A section "zerograd" holds the values that DeepSpeed has no key for. Other flags of `run` must
/// still be given as flags.
std::string config_with(const zero::Setting& setting, const Run& run);

/// Measured rates of this machine, a rank's share.
zero::StepRates measured_rates(const Run& run);

/// Predicted by the plan.
double samples_per_s(const zero::PlannedSetting& plan, const Run& run);

/// Searches the run's choices of stage, places of states and activation checkpointing
/// (zero/advise.h) with each micro-batch; without --train-batch-size up to the first with which
/// every step is predicted to take longer than `longest_step_s`. If none fits, also those with
/// smaller buckets and activations on the host, which are slower. Stops after `seconds` if at least
/// one plan fits. Parts of the optimizer's states and the axes of the ranks are not varied. The
/// settings that fit are sorted by predicted samples per second, the highest first.
zero::Search plan_all(const Run& run, const zero::StepRates& rates, double seconds,
                      double longest_step_s);

/// For each stage, in order, plans the largest micro-batch that fits; all other settings are those
/// of the run. The search by doubling and bisection is exact to one sample. With --train-batch-size
/// only its divisors are tried.
zero::Search plan_largest(const Run& run, const zero::StepRates& rates);

/// The result of training with a planned setting.
struct Trial {
  zero::PlannedSetting plan;
  int64_t predicted_rank;  ///< position in the list of plans, from 1
  std::string failure;     ///< "OutOfMemory: ..." or "no end after 12 s"; empty: it succeeded
  bool timed_out = false;
  int64_t peak_bytes = 0;             ///< reserved bytes of rank 0
  double seconds = 0.0;               ///< median time of a step, without the first two
  double fast_s = 0.0, slow_s = 0.0;  ///< first and third quartile of those times
  int signal = 0;  ///< a signal that this process received meanwhile, as in ChildEnd

  double samples_per_s(const Run& run) const;  ///< 0: the trial failed
};

/// Markdown table: successful trials, fastest first, then failed ones.
std::string table_of(std::vector<Trial> trials, const Run& run);

/// The measurements of a trial.
struct Measured {
  double fast, median, slow;  ///< quartiles of its steps, in seconds per sample
  int deviations;             ///< deviations_of() its setting
};
/// Chooses the trial with the fewest deviations among those that are as fast as the fastest one
/// within noise: the first quartile of their step times is at most its third quartile. Among equals
/// it chooses the fastest.
inline size_t simplest_within_noise(std::span<const Measured> trials) {
  const auto& fastest = *std::ranges::min_element(
      trials, [](const Measured& a, const Measured& b) { return a.median < b.median; });
  size_t chosen = static_cast<size_t>(&fastest - trials.data());
  for (size_t i = 0; i < trials.size(); ++i) {
    const Measured &trial = trials[i], &best = trials[chosen];
    if (trial.fast > fastest.slow) continue;
    if (std::pair(trial.deviations, trial.median) < std::pair(best.deviations, best.median))
      chosen = i;
  }
  return chosen;
}

/// The plan of a setting: samples per second, seconds of a step and the micro-batch.
struct Predicted {
  double samples_per_s, seconds;
  int64_t micro_batch;
};
/// The index of the setting to try first in a family: settings that differ only in the micro-batch
/// and the place of gradient accumulators, sorted by predicted samples per second. Chooses the
/// smallest micro-batch whose prediction is within 5 % of the fastest, because short steps are
/// measured more often in the same time. If a step of it is predicted to take longer than
/// `longest_s`, chooses a smaller micro-batch whose step is not, or the smallest one.
inline size_t first_to_try(std::span<const Predicted> family, double longest_s) {
  size_t chosen = 0;
  for (size_t i = 1; i < family.size(); ++i) {
    const bool is_fast = family[i].samples_per_s >= 0.95 * family[0].samples_per_s;
    if (family[i].micro_batch < family[chosen].micro_batch &&
        (is_fast || family[chosen].seconds > longest_s))
      chosen = i;
  }
  return chosen;
}

/// Runs planned settings one after the other, until `time_s` after `begin`.
class Search {
 public:
  using Clock = std::chrono::steady_clock;

  /// `words`: train's command line without the flags that are varied. The run must outlive this
  /// object. The search may take `time_s` from `begin` on.
  Search(const Run& run, std::vector<std::string> words, Clock::time_point begin, double time_s);

  /// Tries first_to_try() of the six families with the fastest predictions, and the run's own
  /// setting. Then tries the next smaller and the next larger micro-batch of the fastest trial,
  /// again and again, until both have been tried or the trials or the time are used up.
  void find_fastest(const std::vector<zero::PlannedSetting>& plans);
  void try_each(const std::vector<zero::PlannedSetting>& plans);

  const std::vector<Trial>& trials() const { return trials_; }
  const Trial* fastest() const;  ///< null: all trials failed
  const Trial* best() const;     ///< simplest_within_noise(); null: all trials failed
  /// SIGINT, SIGTERM or SIGHUP that ended the search; 0: none.
  int signal() const { return signal_; }

 private:
  double left() const;
  double trial_limit_s(const std::vector<zero::PlannedSetting>& plans) const;
  void try_plan(const std::vector<zero::PlannedSetting>& plans, size_t index);
  bool try_neighbours(const std::vector<zero::PlannedSetting>& plans);

  const Run& run_;
  const std::vector<std::string> words_;
  const Clock::time_point begin_;
  const double time_s_;
  std::vector<Trial> trials_;
  double correction_ = 1.0;  // measured / predicted seconds of the last trial
  int signal_ = 0;
};

}  // namespace zg::tools

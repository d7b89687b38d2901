#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tools/tune_trial.h"

namespace zg::tools {

/// Runs planned settings for real, one after the other, until `time_s` after `begin`.
class Search {
 public:
  using Clock = std::chrono::steady_clock;

  /// `words`: train's command line but for what is varied. The run must outlive it.
  Search(const Run& run, std::vector<std::string> words, Clock::time_point begin, double time_s);

  /// The best of each of the six families that are predicted fastest, the run's own setting, and
  /// then the best one's neighbours in micro-batch for as long as one of them is better.
  void find_fastest(const std::vector<Planned>& plans);
  void try_each(const std::vector<Planned>& plans);

  const std::vector<Trial>& trials() const { return trials_; }
  const Trial* best() const;              ///< null: all failed
  int signal() const { return signal_; }  ///< SIGINT or SIGTERM that ended it; 0: none

 private:
  double left() const;
  void try_plan(const std::vector<Planned>& plans, size_t index);
  bool try_neighbours(const std::vector<Planned>& plans);

  const Run& run_;
  const std::vector<std::string> words_;
  const Clock::time_point begin_;
  const double time_s_;
  std::vector<Trial> trials_;
  double correction_ = 1.0;  // of predicted seconds, by the last trial
  int signal_ = 0;
};

}  // namespace zg::tools

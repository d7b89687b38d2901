#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/zero/config.h"
#include "zerograd/zero/schedule.h"

namespace zg::tools {

/// DeepSpeed's two lines every steps_per_print steps, as its logs are parsed: a step's number,
/// skipped steps and the next step's rate; samples per second and memory. Its first two steps are
/// not timed, so a run's second line comes from the third step on.
class DeepSpeedLog {
 public:
  struct Step {
    int64_t steps, skipped, micro_steps;  ///< since step 0, this one included
    int64_t samples;                      ///< of all ranks, of this step
    double next_rate;                     ///< of the step that follows
    double seconds;
    int64_t live_bytes, peak_bytes;  ///< of the device, after and during the step
  };
  /// `first`: the step where this process starts; the lines count from step 0.
  DeepSpeedLog(int64_t interval, int64_t first, const zero::ScheduleOptions& schedule,
               const zero::AdamOptions& adam);

  std::vector<std::string> lines(const Step& step);  ///< empty unless due

 private:
  int64_t interval_, first_;
  zero::Schedule schedule_;
  zero::AdamOptions adam_;
  double seconds_ = 0.0;  // of the timed steps
  int64_t samples_ = 0;   // of the same
  int64_t peak_bytes_ = 0;
};

/// What a run of epochs is on average, over them and over its ranks.
struct EpochAverages {
  double seconds;                         ///< of one epoch
  double peak_bytes;                      ///< of the device, in the steps
  int64_t memory_bytes, available_bytes;  ///< of the host, now
};
/// The three lines that minGPT's benchmark with Lightning and DeepSpeed ends with, as its results
/// are parsed. Whatever the device is, they call it CUDA.
std::vector<std::string> epoch_lines(const EpochAverages& averages);

/// As repr() prints a float: 0.001, 1e-05, 3.0.
std::string python_number(double number);

}  // namespace zg::tools

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/schedule.h"

namespace zg::tools {

/// The two lines that DeepSpeed prints every steps_per_print steps, in the format that log parsers
/// expect: step number, skipped steps and the next step's rate; samples per second and memory. As
/// in DeepSpeed the first two steps of a run are not timed, so the second line is first printed
/// after the third step.
class DeepSpeedLog {
 public:
  struct Step {
    int64_t steps, skipped, micro_steps;  ///< counted from step 0, including this step
    int64_t samples;                      ///< samples of this step on all ranks
    double next_rate;                     ///< learning rate of the next step
    double seconds;
    int64_t live_bytes, peak_bytes;  ///< device memory after the step, and its peak during the step
  };
  /// `first`: the step at which this process starts; the counts in the lines begin at step 0.
  DeepSpeedLog(int64_t interval, int64_t first, const zero::ScheduleOptions& schedule,
               const zero::UpdateOptions& update);

  std::vector<std::string> lines(const Step& step);  ///< empty unless due

 private:
  int64_t interval_, first_;
  zero::Schedule schedule_;
  zero::UpdateOptions update_;
  double seconds_ = 0.0;  // total over the timed steps
  int64_t samples_ = 0;   // samples of the timed steps
  int64_t peak_bytes_ = 0;
};

/// Averages of a run over its epochs and over its ranks.
struct EpochAverages {
  Device::Type device = Device::Type::cuda;
  double seconds;                         ///< one epoch
  double peak_bytes;                      ///< device memory during the steps
  int64_t memory_bytes, available_bytes;  ///< host memory at this moment
};
/// The last three lines of minGPT's benchmark with Lightning and DeepSpeed, in the format that its
/// result parser expects on CUDA; other devices are named.
std::vector<std::string> epoch_lines(const EpochAverages& averages);

}  // namespace zg::tools

#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "tools/options/options.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/schedule.h"

namespace zg::tools {

// Lines printed at the start of a run.

std::string description_of(const zero::ScheduleOptions& schedule);
/// ", optimizer on the host"; empty if all states are on the device.
std::string description_of(const zero::OffloadOptions& offload);
std::string description_of(const BatchRampup& rampup, int64_t whole);
/// "mesh: data 1 x pipeline 2 x tensor 4, 8 reduction groups".
std::string description_of(const Axes& axes, int64_t data_ranks);

/// The output of a run. Results go to stdout, logs to stderr. A progress line that is redrawn in
/// place (on a terminal) is never mixed with other lines.
class Console {
 public:
  /// With Progress `on` and no terminal on stderr, prints a plain line after each tenth of the run.
  /// A silent console prints nothing.
  Console(TrainOptions::Progress progress, int64_t first_step, int64_t steps, bool silent = false);
  ~Console();

  void result(const std::string& line);  ///< stdout, flushed
  void log(const std::string& line);     ///< stderr
  template <class... Args>
  void result(fmt::format_string<Args...> format, Args&&... args) {
    result(fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void log(fmt::format_string<Args...> format, Args&&... args) {
    log(fmt::format(format, std::forward<Args>(args)...));
  }

  struct Now {
    int64_t step;  ///< steps done
    double loss, tokens_per_second;
  };
  void progress(const Now& now);
  void end_progress();  ///< removes the progress line

 private:
  using Clock = std::chrono::steady_clock;
  std::string progress_line(const Now& now, int width) const;
  void clear();

  enum class Mode : uint8_t { none, redrawn, plain } mode_;
  int64_t first_, steps_, last_tenth_ = -1;
  bool silent_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now(), drawn_at_{};
};

}  // namespace zg::tools

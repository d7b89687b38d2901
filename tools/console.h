#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "tools/options.h"

namespace zg::tools {

/// The two outputs of a run. Results go to stdout, logs to stderr; a progress line that is redrawn
/// in place (on a terminal) never mixes with either.
class Console {
 public:
  /// `on` where stderr is no terminal prints a plain line per tenth of the way. A silent one prints
  /// nothing at all.
  Console(TrainOptions::Progress progress, int64_t first_step, int64_t steps, bool silent = false);
  ~Console();

  void result(const std::string& line);  ///< stdout, flushed
  void log(const std::string& line);     ///< stderr

  struct Now {
    int64_t step;  ///< steps done
    double loss, tokens_per_second;
  };
  void progress(const Now& now);
  void end_progress();  ///< takes the line away

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

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace zg::cpu {

/// Polling with increasing pauses. The first calls of rest() yield, so that a rank on the same core
/// can run. Later calls sleep, up to 500 us.
class Pace {
 public:
  explicit Pace(int64_t yields) : yields_(yields) {}
  void rest() {
    if (yields_-- > 0) return std::this_thread::yield();
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::chrono::microseconds(500));
  }

 private:
  int64_t yields_;
  std::chrono::microseconds pause_{20};
};

}  // namespace zg::cpu

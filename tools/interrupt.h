#pragma once

namespace zg::tools {

/// RAII: the first SIGINT or SIGTERM is noted instead of ending the process, so that a run can stop
/// between two steps and save; a second one ends it at once.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  int signal() const;  ///< 0: none came
};

}  // namespace zg::tools

#pragma once

namespace zg::tools {

/// Whether mpirun, which started this process, sent it a SIGTERM while there was an InterruptScope:
/// a second later it sends SIGKILL.
bool last_warning();

/// RAII: the first SIGINT or SIGTERM is noted instead of ending the process, so that a run can stop
/// between two steps and save; a second one, unless it comes with the first, ends it at once.
/// SIGPIPE is noted too, each time: when nobody reads the results any more (`| head -1`), a run
/// shall neither train on for nobody nor end without saving.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  int signal() const;  ///< 0: none came
  /// From here on SIGINT and SIGTERM end the process, also one that came and was not asked for.
  void release() const;
};

}  // namespace zg::tools

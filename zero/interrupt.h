#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg::zero {

/// Whether mpirun, which started this process, sent it a SIGTERM while there was an InterruptScope:
/// a second later it sends SIGKILL.
ZG_API bool last_warning();

/// Whether the process was started with this signal ignored, as nohup does with SIGHUP, and still
/// ignores it.
ZG_API bool is_ignored(int signal);

/// RAII: ends a run that gets a signal after it has saved. With a trainer (zero/trainer.h):
///
///   const zero::InterruptScope interrupt;
///   zero::Trainer trainer(engine, options, task,
///       {.after_step = [&](const zero::TrainedStep&) { interrupt.save_from_now(); },
///        .stop = [&] { return interrupt.signal() ? 1 : 0; }});
///
/// Handles SIGINT, SIGTERM and SIGHUP. Until save_from_now() they end the process at once, as
/// they do by default. After it the first one is noted, so that the run can stop and save; a second
/// one, unless it comes with the first, ends the process at once. SIGHUP stays ignored where it was
/// ignored before (nohup). SIGPIPE is noted from the beginning, each time: when nobody reads the
/// results any more (`| head -1`), a run must neither train on nor end without saving.
class ZG_API InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  /// There is something to save: the first step of this run is done. Any thread, any number of
  /// times.
  void save_from_now() const;
  int signal() const;  ///< 0: none came
  /// From here on these signals end the process, also one that came and was not asked for.
  void release() const;
};

/// Where ranks that are threads of one process stop after a signal: all at the same point of their
/// program, and no message passes between them.
class ZG_API CommonStop {
 public:
  /// `interrupt` must outlive it.
  CommonStop(int64_t ranks, const InterruptScope& interrupt);

  /// A rank comes to its next stopping point; all ranks come to the same points in the same order.
  /// True: all stop here, before what follows. The first rank that sees a signal chooses the first
  /// point that no rank has passed yet.
  bool reached(int rank);

 private:
  const InterruptScope& interrupt_;
  std::mutex mutex_;
  std::vector<int64_t> passed_;  // points, by rank
  int64_t stop_ = -1;            // the point where all stop; -1: not chosen
};

}  // namespace zg::zero

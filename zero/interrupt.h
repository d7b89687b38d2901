#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg::zero {

/// True if Open MPI's mpirun started this process and sent it SIGTERM while an InterruptScope
/// existed. mpirun sends SIGKILL one second after SIGTERM.
ZG_API bool last_warning();

/// True if the process ignores this signal now. nohup starts a process that ignores SIGHUP.
ZG_API bool is_ignored(int signal);

/// RAII: while this object exists, a run that receives a signal can save a checkpoint before it
/// ends. With a trainer (zero/trainer.h):
///
///   const zero::InterruptScope interrupt;
///   zero::Trainer trainer(engine, options, task,
///       {.after_step = [&](const zero::TrainedStep&) { interrupt.save_from_now(); },
///        .stop = [&] { return interrupt.signal() ? 1 : 0; }});
///
/// Handles SIGINT, SIGTERM and SIGHUP. Before save_from_now() each of them ends the process at
/// once, except SIGTERM from Open MPI's mpirun, which is recorded. After save_from_now() the first
/// signal is recorded, so that the run can stop and save. A second signal ends the process at once,
/// unless it comes within 300 ms of the first. SIGUSR1, which mpirun passes on and launch sends, is
/// recorded as SIGTERM, and never counts as a second signal. If SIGHUP was ignored before (nohup),
/// it stays ignored. SIGXFSZ is ignored, so that a write beyond the file size limit returns an
/// error. SIGPIPE is always recorded and never ends the process: when the reader of the results has
/// ended (`| head -1`), the run must stop training, save and then end. The destructor sets the
/// default actions, except for a SIGHUP that stays ignored, and of SIGXFSZ the action before.
class ZG_API InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  /// Call it when the first step of this run is done. Before that, a checkpoint would hold no
  /// progress of this run. Any thread may call it, any number of times.
  void save_from_now() const;
  int signal() const;  ///< the recorded signal; 0: none
  /// Sets the default actions of SIGINT, SIGTERM and SIGHUP (a SIGHUP that was ignored stays
  /// ignored), and raises a recorded signal again, so that it ends the process. A recorded SIGPIPE
  /// is not raised.
  void release() const;

 private:
  void (*size_handler_before_)(int);  // of SIGXFSZ
};

/// After a signal, tells all ranks (threads of one process) to stop at the same point of their
/// program, without a collective.
class ZG_API CommonStop {
 public:
  /// `interrupt` must outlive this object.
  CommonStop(int64_t ranks, const InterruptScope& interrupt);

  /// A rank calls it at each stopping point. All ranks reach the same points in the same order.
  /// Returns true if all ranks stop at this point. The first rank that sees a signal chooses the
  /// stopping point: the first one that no rank has passed yet.
  bool reached(int rank);

 private:
  const InterruptScope& interrupt_;
  std::mutex mutex_;
  std::vector<int64_t> passed_;  // number of passed points, by rank
  int64_t stop_ = -1;            // number of the point where all stop; -1: not chosen
};

}  // namespace zg::zero

#pragma once

namespace zg::cuda {

// A kernel of NCCL occupies its GPU until all ranks have launched theirs. Driver calls that add or
// free memory, create streams or load kernels may wait until the device is idle, and the launches
// of the other threads of the process may wait for them meanwhile. With ranks as threads that is a
// deadlock: rank 0 waits for its kernel, its kernel for rank 1's, and rank 1's launch for rank 0's
// call. So such calls are made only while no collective of this process runs.
//
// A call that waits does not keep collectives from starting, because every rank of a running
// collective must be able to join it. When a collective begins on some rank, all of its ranks have
// met (runtime/comm), and their communication threads do not need the thread that waits. A rank
// that waits joins no further collective, so after the running ones no collective runs, and the
// wait ends.

/// Exists while NCCL works for one rank, from before the launch until the stream is idle. The
/// constructor waits for a QuietProcess to end.
class RunningCollective {
 public:
  RunningCollective();
  ~RunningCollective();
  RunningCollective(const RunningCollective&) = delete;
  RunningCollective& operator=(const RunningCollective&) = delete;
};

/// Exists while a call is made that may wait until the device is idle. The constructor waits until
/// no collective runs. On a thread that runs a collective itself it does nothing, because that
/// thread must not wait. A thread may have several objects of this class at a time.
class QuietProcess {
 public:
  QuietProcess();
  ~QuietProcess();
  QuietProcess(const QuietProcess&) = delete;
  QuietProcess& operator=(const QuietProcess&) = delete;

 private:
  const bool counts_;
};

}  // namespace zg::cuda

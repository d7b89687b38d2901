#pragma once

#include <memory>

#include "runtime/cpu/queued_comm.h"
#include "runtime/processes.h"

namespace zg::cpu {

/// One rank as a process.
class ProcessCommunicator : public QueuedCommunicator {
 public:
  /// All collectives are done; returns when every rank is here. Throws CommError.
  virtual void finish() = 0;
  /// After a failure, if that was asked for.
  virtual void dump() = 0;

 protected:
  using QueuedCommunicator::QueuedCommunicator;
};

std::unique_ptr<ProcessCommunicator> make_mpi_communicator(const ProcessPlace& place,
                                                           const ProcessOptions& options,
                                                           const Device& device);

}  // namespace zg::cpu

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"

namespace zg {

/// Rank and size that a launcher (mpirun, srun) gives this process in its environment.
struct ProcessRank {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< on this host
};

/// Absent if this process was not started by an MPI launcher. Throws ConfigError if one of the
/// launcher's environment variables is not a number.
ZG_API std::optional<ProcessRank> process_rank();

/// A process's share of this host's cores, at least one: all cores of the launcher divided by its
/// number of processes on this host, or the cores to which the launcher bound this process if they
/// are fewer.
ZG_API int threads_per_process(int local_size);

/// The MPI library of this build, "Open MPI 4.1.4"; empty: none.
ZG_API std::string mpi_version();

struct ProcessOptions {
  double timeout_s = 60.0;    ///< limit for one collective, including the wait for peers
  DeviceOptions device = {};  ///< threads 0: this process's share of the cores
  Device::Type type = Device::Type::cpu;  ///< cpu or cuda
  /// After a failure each rank writes the last 64 collectives of each group to stderr, with their
  /// calls, steps and times.
  bool dump_collectives = false;
  /// Called repeatedly, on a separate thread. Returns true if the launcher has announced that it
  /// will kill this process in about a second. Then a collective that cannot complete before that
  /// throws CommError.
  std::function<bool()> told_to_end = {};
  /// Names and values, at most 8, that must be equal on every rank. They are compared before f is
  /// called.
  std::vector<std::pair<std::string, std::string>> same;
};

/// Runs f(communicator, device) as one rank of a group of processes that an MPI launcher started.
/// The device is cpu:rank, or the GPU with the rank's number on this host. Returns when f has
/// returned on every rank. Results are bitwise equal to those of run_local(), and errors are the
/// same. Separate threads call MPI, one thread at a time. They sleep while they wait. The death of
/// another process on this host is detected at once. Throws ConfigError if `same` differs,
/// Unsupported if this build has no MPI. Call it once per process, because MPI can start only once.
/// After an error MPI is not finalised, and the process must end.
ZG_API void run_processes(const std::function<void(Communicator&, const Device&)>& f,
                          const ProcessOptions& options = {});

}  // namespace zg

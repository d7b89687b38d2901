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

/// Absent: no launcher of MPI started this process. ConfigError when a variable is no number.
ZG_API std::optional<ProcessRank> process_rank();

/// A process's share of this host's cores, at least one: the launcher's cores by the processes that
/// it started here, or fewer where it bound this one to fewer.
ZG_API int threads_per_process(int local_size);

/// The MPI that this build links, "Open MPI 4.1.4"; empty: none.
ZG_API std::string mpi_version();

struct ProcessOptions {
  double timeout_s = 60.0;    ///< limit for one collective, including the wait for peers
  DeviceOptions device = {};  ///< threads 0: this process's share of the cores
  Device::Type type = Device::Type::cpu;  ///< cpu or cuda
  /// After a failure each rank writes the last 64 collectives of each group on stderr: calls, steps
  /// and times.
  bool dump_collectives = false;
  /// Called now and then, on a thread of its own. Returns whether the launcher has announced that
  /// it will kill this process about a second later. A collective that cannot end before is then a
  /// CommError.
  std::function<bool()> told_to_end = {};
  /// Name and value, at most 8: what has to be equal on every rank before anything else happens.
  std::vector<std::pair<std::string, std::string>> same;
};

/// Runs f(communicator, device) as this process's rank of a group of processes that MPI started,
/// device cpu:rank or the GPU of its rank on this host, and returns when the f of every rank has.
/// Everything a Communicator promises holds: same bits and errors as with run_local. MPI is called
/// from threads of its own, one at a time, and nothing spins while they wait. The death of a peer
/// on this host is detected at once. ConfigError: `same` differs. Unsupported: this build has no
/// MPI. Call it once per process, because MPI starts only once. After an error MPI is not
/// finalised: the process must end.
ZG_API void run_processes(const std::function<void(Communicator&, const Device&)>& f,
                          const ProcessOptions& options = {});

}  // namespace zg

#pragma once

#include <string>
#include <vector>

#include "tools/hostfile.h"

namespace zg::tools {

/// What starts a job's processes: Open MPI's mpirun, MPICH's mpiexec.hydra, or Slurm's srun, which
/// starts those of either.
enum class Launcher { openmpi, mpich, slurm };

struct Job {
  std::vector<Host> hosts;         ///< empty: Slurm's allocation says where
  int64_t nodes = -1, slots = -1;  ///< then: at most these, -1: all that it has
  std::vector<std::string> command;
  double timeout_s = 60.0;  ///< after which ranks give up on each other: Open MPI on hosts too
};

/// The launcher that `name` (DeepSpeed's --launcher; empty: the MPI's own) means for this build's
/// MPI. Unsupported: there is no MPI, or it is another's; ConfigError: no such launcher.
Launcher launcher_of(const std::string& name, const std::string& mpi_version);

/// For exec: no shell sees any of them. Ranks share a host's cores themselves.
std::vector<std::string> launcher_words(Launcher launcher, const std::string& mpi_version,
                                        const Job& job);

}  // namespace zg::tools

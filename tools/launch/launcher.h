#pragma once

#include <string>
#include <vector>

#include "tools/launch/hostfile.h"

namespace zg::tools {

/// The program that starts a job's processes: Open MPI's mpirun, MPICH's mpiexec.hydra, or Slurm's
/// srun, which works with both MPIs.
enum class Launcher { openmpi, mpich, slurm };

struct Job {
  std::vector<Host> hosts;         ///< empty: the hosts of Slurm's allocation
  int64_t nodes = -1, slots = -1;  ///< for Slurm's allocation: at most this many; -1: all
  std::vector<std::string> command;
  /// Limit for the wait of ranks for each other; Open MPI uses it for lost hosts too.
  double timeout_s = 60.0;
};

/// The launcher for `name` (DeepSpeed's --launcher; empty: the MPI's own) and this build's MPI.
/// Unsupported if there is no MPI, or if the launcher is for another MPI. ConfigError: unknown
/// launcher.
Launcher launcher_of(const std::string& name, const std::string& mpi_version);

/// The command line for exec; no shell interprets the words. Ranks divide a host's cores
/// themselves.
std::vector<std::string> launcher_words(Launcher launcher, const std::string& mpi_version,
                                        const Job& job);

}  // namespace zg::tools

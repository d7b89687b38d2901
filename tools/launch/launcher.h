#pragma once

#include <string>
#include <vector>

namespace zg::tools {

/// A machine and the slots that are used on it. Each slot runs one rank.
struct Host {
  std::string name;
  std::vector<int> slots;
};

std::vector<int> first_slots(int64_t count);  ///< 0 to count - 1

/// Reads DeepSpeed's hostfile: "worker-0 slots=4" on each line, # starts a comment. Throws
/// FileError. Throws ConfigError with file and line for any other text, an invalid host name or a
/// repeated one.
std::vector<Host> read_hostfile(const std::string& path);
/// Parses the text of a hostfile; `file` is named in errors.
std::vector<Host> parse_hosts(const std::string& text, const std::string& file);

/// Returns the hosts and slots that `include` names, or all that `exclude` does not name. Both are
/// written "worker-0@worker-1:0,2": all slots of worker-0, slots 0 and 2 of worker-1. At most one
/// of them may be given. Throws ConfigError.
std::vector<Host> selected(std::vector<Host> hosts, const std::string& include,
                           const std::string& exclude);

/// The program that starts a job's processes: Open MPI's mpirun, MPICH's mpiexec.hydra, or Slurm's
/// srun, which works with both MPIs.
enum class Launcher { openmpi, mpich, slurm };

struct Job {
  std::vector<Host> hosts;  ///< empty: the hosts of Slurm's allocation
  /// Limits in Slurm's allocation: nodes, and ranks on each node; -1: no limit.
  int64_t nodes = -1, slots = -1;
  std::vector<std::string> command;
  /// Seconds that ranks wait for other ranks. Open MPI detects a lost host in about this time.
  double timeout_s = 60.0;
};

/// The launcher for `name` (DeepSpeed's --launcher; empty: the MPI's own) and this build's MPI.
/// Throws Unsupported if there is no MPI, or if the launcher is for another MPI; ConfigError for an
/// unknown launcher.
Launcher launcher_of(const std::string& name, const std::string& mpi_version);

/// The command line for exec; no shell interprets the words. The ranks on a host divide its cores
/// among themselves.
std::vector<std::string> launcher_words(Launcher launcher, const std::string& mpi_version,
                                        const Job& job);

}  // namespace zg::tools

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/run.h"
#include "zerograd/runtime/comm.h"

namespace zg::tools {

/// Where mpirun or srun started this process as one of several, its ranks are the run's: --ranks
/// may say the same or nothing. ConfigError where it says something else, or where the variables of
/// torchrun ask for processes that have no way to meet; Unsupported in a build without MPI.
void adopt_processes(TrainOptions& options);

/// Whether this process is the one that writes: the first, or the only one.
bool is_first_process(const TrainOptions& options);

/// The values that must be equal on every rank before step 0, by name: as checksums where they are
/// long. Those that follow from a checkpoint are left to agreed().
std::vector<std::pair<std::string, std::string>> common_values(const Run& run);

/// A run whose checkpoint is the same on every rank. Each process chooses by itself, and where
/// another run saves and removes checkpoints they may find different ones: then all choose again,
/// by the options that the run was prepared with. ConfigError when other settings differ.
/// Collective; none of its exchanges is the run's.
Run agreed(Run run, const TrainOptions& given, Communicator& ranks);

}  // namespace zg::tools

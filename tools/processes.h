#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/comm.h"
#include "tools/run.h"

namespace zg::tools {

/// Where mpirun or srun started this process as one of several, its ranks are the run's: --ranks
/// may say the same or nothing. ConfigError where it says something else, or where the variables of
/// torchrun ask for processes that have no way to meet; Unsupported in a build without MPI.
void adopt_processes(TrainOptions& options);

/// Whether this process is the one that writes: the first, or the only one.
bool is_first_process(const TrainOptions& options);

/// What must be equal on every rank before step 0, by name: as checksums where it is long.
std::vector<std::pair<std::string, std::string>> common_values(const Run& run);

/// Every rank's text, in rank order. Collective.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text);

}  // namespace zg::tools

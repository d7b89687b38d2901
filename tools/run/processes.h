#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/run/run.h"
#include "zerograd/runtime/comm/communicator.h"

namespace zg::tools {

/// Name and value of all settings that must be equal on every rank before step 0; long values are
/// given as checksums. Settings that follow from a checkpoint are checked by agree_on_checkpoint().
std::vector<std::pair<std::string, std::string>> common_values(const Run& run);

/// Makes all ranks use the same checkpoint. Each process chooses one by itself. If another run
/// saves and removes checkpoints meanwhile, the choices may differ; then all processes choose
/// again, from the options that the run was prepared with. Throws ConfigError when other settings
/// differ. Collective; its collectives are not counted as the run's.
Run agree_on_checkpoint(Run run, const TrainOptions& given, Communicator& ranks);

}  // namespace zg::tools

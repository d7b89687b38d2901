#pragma once

#include "tools/options.h"

namespace zg::tools {

std::vector<Flag> offload_flags(OffloadFlags& offload, zero::OffloadOptions& engine);

/// --cpu-offload, the strategies of that name and a config's cpu_checkpointing say where each kind
/// goes that no flag names: optimizer and gradients to the host, at stage 3 parameters too.
/// ConfigError for parameters that are whole between their uses.
void settle_offload(TrainOptions& options);

}  // namespace zg::tools

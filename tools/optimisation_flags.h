#pragma once

#include <vector>

#include "tools/options.h"
#include "zerograd/runtime/command_line/command_line.h"

namespace zg::tools {

/// Any of them asks for AnnealingLR.
inline constexpr const char* annealing_flags[] = {"--lr-decay-style", "--lr-warmup-samples",
                                                  "--lr-decay-samples"};

/// Flags of how a run learns: rate, AdamW, clipping, dtypes, and where weights start.
std::vector<Flag> optimisation_flags(TrainOptions& options);

/// Gives the engine the dtypes that --precision asks for; --grad-accum-dtype has the last word.
void settle_precision(TrainOptions& options);

/// Once what a checkpoint says is in: the warmup and the end that a schedule has by default.
/// ConfigError where flags contradict each other or the checkpoint.
void settle_schedule(TrainOptions& options);

}  // namespace zg::tools

#pragma once

#include "tools/options/options.h"

namespace zg::tools {

/// Each of these flags selects AnnealingLR.
inline constexpr const char* annealing_flags[] = {"--lr-decay-style", "--lr-warmup-samples",
                                                  "--lr-decay-samples"};

/// Sets the engine's dtypes from --precision, then from --grad-accum-dtype, which overrides it.
void settle_precision(TrainOptions& options);

/// Fills in the default warmup and end of a schedule. Call it after the options of a checkpoint are
/// applied. ConfigError where flags contradict each other or the checkpoint.
void settle_schedule(TrainOptions& options);

}  // namespace zg::tools

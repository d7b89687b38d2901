#pragma once

#include <string>

#include "zerograd/zero/batch_rampup.h"
#include "zerograd/zero/batch_size.h"

// The flag --rampup-batch-size.
namespace zg::tools {

using zero::BatchRampup;
using zero::Progress;

/// "16,16,5000000". ConfigError.
BatchRampup parse_rampup(const std::string& flag, const std::string& value);

/// ConfigError where the steps do not end at the whole batch, or one of them is no whole number of
/// micro-batches of every rank.
void check_rampup(const BatchRampup& rampup, const zero::BatchSize& size);

}  // namespace zg::tools

#pragma once

#include <string>

#include "zerograd/zero/batch_size.h"

// The flag --rampup-batch-size.
namespace zg::tools {

using zero::BatchRampup;
using zero::Progress;

/// Parses START,INCREMENT,SAMPLES: "16,16,5000000". Throws ConfigError.
BatchRampup parse_rampup(const std::string& flag, const std::string& value);

/// Throws ConfigError if the growing batch does not reach the full batch exactly, or if a batch
/// size is not a multiple of micro-batch x ranks.
void check_rampup(const BatchRampup& rampup, const zero::BatchSize& size);

}  // namespace zg::tools

#pragma once

#include <cstdint>
#include <memory>

#include "tools/options/options.h"
#include "zerograd/models/data/data.h"

namespace zg::tools {

enum class Validates : uint8_t { no, yes };

/// Data for a plan without --data and for an import, which takes no step: an unlimited number of
/// samples that contain only token 0. Vocabulary and block size come from the flags or from the
/// published configuration of the named model. ConfigError when neither gives them.
std::shared_ptr<const models::Dataset> meta_dataset(const ModelOptions& model, Validates validates);

}  // namespace zg::tools

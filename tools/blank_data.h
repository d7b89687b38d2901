#pragma once

#include <cstdint>
#include <memory>

#include "tools/options.h"
#include "zerograd/models/data.h"

namespace zg::tools {

enum class Validates : uint8_t { no, yes };

/// For a plan without --data, and for an import, which takes no step: as many samples as anybody
/// asks for, all of token 0, with the vocabulary and block size of the flags or that the named
/// model was published with. ConfigError when neither says them.
std::shared_ptr<const models::Dataset> blank_dataset(const ModelOptions& model,
                                                     Validates validates);

}  // namespace zg::tools

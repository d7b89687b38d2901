#pragma once

#include <memory>

#include "models/data.h"
#include "tools/options.h"

namespace zg::tools {

/// For a plan without --data: as many samples as anybody asks for, all of token 0, with the
/// vocabulary and block size of the flags or of the model's name. ConfigError when neither says
/// them.
std::shared_ptr<const models::Dataset> blank_dataset(const ModelOptions& model);

}  // namespace zg::tools

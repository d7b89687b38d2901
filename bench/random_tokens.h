#pragma once

#include <memory>

#include "zerograd/models/data/data.h"

namespace zg::bench {

/// Tokens that follow from nothing: sample by sample uniform in [0, vocabulary), each the target of
/// the one before it. What a step takes does not depend on them.
std::shared_ptr<const models::Dataset> random_tokens(int64_t vocabulary, int64_t block_size);

}  // namespace zg::bench

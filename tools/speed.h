#pragma once

#include "zerograd/models/gpt.h"

namespace zg::tools {

/// Forward and backward: three products per weight, two operations per multiply-add. A token
/// attends to half a block on average, once for the scores and once for the values.
double matmul_flops_per_token(const models::GPTConfig& model);

}  // namespace zg::tools

#pragma once

#include "zerograd/models/gpt.h"
#include "zerograd/runtime/device.h"

namespace zg::tools {

/// As measure_matmul_peak(); 0 where a kernel to compare with is missing.
double matmul_peak(const Device& device, DType dtype);

/// Forward and backward: three products per weight, two operations per multiply-add. A token
/// attends to half a block on average, once for the scores and once for the values.
double matmul_flops_per_token(const models::GPTConfig& model);

}  // namespace zg::tools

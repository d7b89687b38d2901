#pragma once

#include "models/gpt.h"
#include "runtime/device.h"

namespace zg::tools {

/// As measure_matmul_peak(); 0 where a kernel to compare with is missing.
double matmul_peak(const Device& device, DType dtype);

/// Bytes moved per second by all threads: y[i] += x[i] reads two arrays and writes one, each too
/// large for any cache. The best of several passes, as for the matmul peak.
double memory_bandwidth(const Device& device);

/// Forward and backward: three products per weight, two operations per multiply-add. A token
/// attends to half a block on average, once for the scores and once for the values.
double matmul_flops_per_token(const models::GPTConfig& model);

}  // namespace zg::tools

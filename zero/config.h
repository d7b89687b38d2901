#pragma once

#include <cstdint>

#include "runtime/api.h"
#include "runtime/dtype.h"

namespace zg::zero {

/// AdamW's constants. Weight decay applies to parameters with `decay` only.
struct AdamOptions {
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f;
};

/// How the engine keeps and updates parameters.
struct Config {
  int stage = 0;               ///< ZeRO stage
  DType compute = DType::f32;  ///< f32 | bf16: values, activations and leaf gradients
  AdamOptions adam;
  float clip_norm = 1.0f;  ///< of the global gradient norm; 0: no clipping
  uint64_t seed = 3407;    ///< of initial values
};

/// Throws ConfigError naming the field, or Unsupported for what this build does not do.
ZG_API void validate(const Config& config);

}  // namespace zg::zero

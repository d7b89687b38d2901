#pragma once

#include <cstdint>

#include "kernels/adam_constants.h"

namespace zg::cpu {

/// Elements [0, n) of the tensors of zg::Adam.
struct AdamRange {
  void* parameter;
  const void* gradient;
  void* moment1;
  void* moment2;
  void* low_precision;  ///< null when absent
  int64_t n;
};

using AdamUpdate = void (*)(const AdamRange&, const AdamConstants&);

/// By the dtypes of gradient (f32, bf16) and low_precision (absent, bf16, f16).
struct AdamTable {
  AdamUpdate update[2][3];
  AdamUpdate narrow[2];  ///< with parameter and moments in bf16, low_precision absent
};

}  // namespace zg::cpu

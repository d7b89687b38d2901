#pragma once

#include <cstdint>

namespace zg::cpu {

/// A loop of multiply-adds without loads or stores.
struct PeakLoop {
  double flops_per_step;
  float (*run)(int64_t steps);  ///< the result keeps the compiler from dropping the work
};
struct PeakTable {
  PeakLoop f32, bf16;
};

}  // namespace zg::cpu

#pragma once

#include <cstdint>

namespace zg::cpu {

/// A loop of multiply-adds without loads or stores.
struct PeakLoop {
  double flops_per_step;
  float (*run)(int64_t steps);  ///< returns a result so that the compiler does not remove the loop
};
struct PeakTable {
  PeakLoop f32, bf16;
};

}  // namespace zg::cpu

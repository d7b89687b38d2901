#pragma once

#include <cstdint>

namespace zg::cpu {

/// A loop of multiply-adds without loads or stores.
struct PeakLoop {
  double flops_per_step;
  float (*run)(int64_t steps);  ///< returns a result so that the compiler does not remove the loop
};
/// Loops over n elements, a multiple of 64: x is read; y += 1; y += x.
struct MemoryTable {
  float (*read)(const float* x, int64_t n);
  void (*update)(float* y, int64_t n);
  void (*add)(float* y, const float* x, int64_t n);
};
struct PeakTable {
  PeakLoop f32, bf16;
  MemoryTable memory;
};

}  // namespace zg::cpu

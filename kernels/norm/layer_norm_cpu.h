#pragma once

#include <cstdint>

namespace zg::cpu {

/// zg::LayerNormForward, or zg::RmsNormForward without beta and mean. Elements are of type T, mean
/// and rstd of its accumulator type.
struct NormForward {
  const void *x, *residual, *gamma, *beta;
  void *y, *sum, *mean, *rstd;
  int64_t C;
  float epsilon;
};
struct NormBackward {
  const void *dy, *x, *gamma, *mean, *rstd, *dsum;
  void* dx;
  int64_t C;
  bool rounds_twice;
};

/// Computes rows [begin, end).
using NormForwardRows = void (*)(const NormForward&, int64_t begin, int64_t end);
/// Computes dx of rows [begin, end) and adds to dgamma and dbeta [C], accumulator type, either of
/// which may be null.
using NormBackwardRows = void (*)(const NormBackward&, int64_t begin, int64_t end, void* dgamma,
                                  void* dbeta);

struct NormFunctions {
  NormForwardRows forward;
  NormBackwardRows backward;
};

struct NormTable {
  struct ByType {
    NormFunctions type[4];  ///< f64, f32, bf16, f16
  };
  ByType layer_norm, rms_norm;
};

}  // namespace zg::cpu

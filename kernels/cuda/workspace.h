#pragma once

#include "kernels/layer_norm.h"

// Scratch of the CUDA kernels: plain arithmetic on shapes, in every build, so that a machine
// without CUDA can plan a run on one that has it.
namespace zg::cuda {

/// How a norm's backward pass cuts N rows of C: by shape alone, so its sums have one order.
struct NormBlocks {
  int64_t rows;    ///< of a block
  int64_t blocks;  ///< each leaves its sums over rows for dgamma and dbeta
  explicit NormBlocks(int64_t N);
};
int64_t layer_norm_backward_bytes(const LayerNormBackward&, const Device::Traits&);
int64_t rms_norm_backward_bytes(const RmsNormBackward&, const Device::Traits&);

}  // namespace zg::cuda

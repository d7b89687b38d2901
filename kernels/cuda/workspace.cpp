#include "kernels/cuda/workspace.h"

#include <algorithm>

namespace zg::cuda {

NormBlocks::NormBlocks(int64_t N) {
  // Two blocks for each of the 132 multiprocessors of an H100 or H200; a row has work for one warp.
  constexpr int64_t most_blocks = 264, fewest_rows = 8;
  rows = std::max(fewest_rows, (N + most_blocks - 1) / most_blocks);
  blocks = (N + rows - 1) / rows;
}

int64_t layer_norm_backward_bytes(const LayerNormBackward& a, const Device::Traits&) {
  const int64_t wanted = (a.dgamma ? 1 : 0) + (a.dbeta ? 1 : 0);
  return NormBlocks(a.x.extent(0)).blocks * wanted * a.x.extent(1) * int64_t{sizeof(float)};
}

int64_t rms_norm_backward_bytes(const RmsNormBackward& a, const Device::Traits&) {
  return a.dgamma ? NormBlocks(a.x.extent(0)).blocks * a.x.extent(1) * int64_t{sizeof(float)} : 0;
}

}  // namespace zg::cuda

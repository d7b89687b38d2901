#pragma once

#include <algorithm>
#include <cstdint>

namespace zg {

/// How the backward pass of a norm on an accelerator distributes N rows over blocks of threads. It
/// depends only on N, so the sums for dgamma and dbeta have a fixed order.
struct NormBlocks {
  int64_t rows;    ///< rows in a block
  int64_t blocks;  ///< each writes its partial sums for dgamma and dbeta

  NormBlocks(int64_t N, int64_t most_blocks) {
    constexpr int64_t fewest_rows = 8;  // as many as a CUDA block has warps
    rows = std::max(fewest_rows, (N + most_blocks - 1) / most_blocks);
    blocks = (N + rows - 1) / rows;
  }
  /// Two blocks for each of the 132 multiprocessors of an H100 or H200.
  static NormBlocks on_cuda(int64_t N) { return {N, 264}; }
  static NormBlocks on_hpu(int64_t N) { return {N, 256}; }
};

}  // namespace zg

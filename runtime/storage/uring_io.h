#pragma once

#include "zerograd/runtime/storage/block_io.h"

namespace zg::cpu {

/// Null where this build or kernel has no io_uring; then the file is still the caller's.
std::unique_ptr<BlockIo> open_uring(const SwapOptions& options, int file, bool direct);

}  // namespace zg::cpu

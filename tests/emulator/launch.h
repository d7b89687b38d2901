#pragma once

#include <functional>

#include "cuda_runtime_api.h"

namespace zg::emulator {

/// Queues a kernel: run_grid() when the stream is waited for.
void launch(const char* kernel, Extent grid, Extent block, size_t shared_bytes, cudaStream_t stream,
            std::function<void()> body);

}  // namespace zg::emulator

#pragma once

#include <functional>

#include "cuda_runtime_api.h"

namespace zg::emulator {

/// Work of a stream: done as late as it may be, when the stream is waited for; as soon as it may be
/// where ZG_EMULATOR_AT_ONCE is set, and with AddressSanitizer, which knows memory that was given
/// back since, and then has whoever queued the work on the stack.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// Queues a kernel: run_grid() when the stream is waited for.
void launch(const char* kernel, Extent grid, Extent block, size_t shared_bytes, cudaStream_t stream,
            std::function<void()> body);

/// How many products the double of cuBLASLt has taken.
int64_t cublaslt_products();

}  // namespace zg::emulator

#pragma once

#include <functional>

#include "cuda_runtime_api.h"

namespace zg::emulator {

/// Work of a stream: done as late as it may be, when the stream is waited for; as soon as it may be
/// where ZG_EMULATOR_AT_ONCE is set, and with AddressSanitizer, which knows memory that was given
/// back since, and then has whoever queued the work on the stack.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// Work that waits for other devices, whose memory `ready` does not reach: it is asked again.
void enqueue_when(cudaStream_t stream, std::function<bool()> ready, std::function<void()> work);
/// Whether it is memory of a device.
bool is_mapped(const void* place);
/// Queues a kernel: run_grid() when the stream is waited for.
void launch(const char* kernel, Extent grid, Extent block, size_t shared_bytes, cudaStream_t stream,
            std::function<void()> body);

/// How many products the double of cuBLASLt has taken.
int64_t cublaslt_products();
/// How many calls of it that move data the double of NCCL has done.
int64_t nccl_operations();

}  // namespace zg::emulator

#pragma once

#include <functional>

#include "cuda_runtime_api.h"

namespace zg::emulator {

/// Queues work on a stream. It runs as late as possible: when the stream is waited for. With
/// ZG_EMULATOR_AT_ONCE, and with AddressSanitizer, it runs as soon as possible: then a report of
/// freed memory has the code that queued the work on its stack.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// Queues work that waits for other devices: it runs once ready() returns true; ready() is called
/// again and again.
void enqueue_when(cudaStream_t stream, std::function<bool()> ready, std::function<void()> work);
/// Whether the address belongs to memory of a device.
bool is_mapped(const void* place);
/// Queues a kernel: run_grid() when the stream is waited for.
void launch(const char* kernel, Extent grid, Extent block, size_t shared_bytes, cudaStream_t stream,
            std::function<void()> body);

/// How many products the emulated cuBLASLt has computed.
int64_t cublaslt_products();
/// How many calls that move data the emulated NCCL has done.
int64_t nccl_operations();

}  // namespace zg::emulator

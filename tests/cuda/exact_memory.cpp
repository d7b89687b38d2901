#include <cuda_runtime_api.h>

#include <memory>

#include "tests/kernels/guarded_call.h"
#include "zerograd/runtime/cuda/api.h"

namespace zg::testing {

std::shared_ptr<void> cuda_memory(const Device& device, size_t bytes) {
  const cuda::OnDevice on(device.index());
  void* memory = nullptr;
  cuda::check(cudaMalloc(&memory, bytes > 0 ? bytes : 1), "cudaMalloc");
  return {memory, [](void* all) { cudaFree(all); }};  // waits for the device
}

}  // namespace zg::testing

#include <string>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/cublaslt.h"
#include "zerograd/runtime/cuda/memory.h"
#include "zerograd/runtime/cuda/nccl.h"
#include "zerograd/runtime/cuda/stream.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

// Without a driver cudaGetDeviceCount reports "insufficient driver" and does not set the count.
int count_devices() {
  hardware_connections();  // sets its variable before CUDA reads it
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::string absence() {
  hardware_connections();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {};
  cudaGetLastError();
  int version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess && version == 0)
    return "there is no NVIDIA driver (libcuda.so.1)";
  if (error == cudaErrorInsufficientDriver)
    return fmt::format("the NVIDIA driver supports CUDA up to {}.{}; expected {}.{} or newer",
                       version / 1000, version / 10 % 100, CUDART_VERSION / 1000,
                       CUDART_VERSION / 10 % 100);
  return error == cudaSuccess ? "the driver shows no device"
                              : std::string("the CUDA runtime says: ") + cudaGetErrorString(error);
}

std::string describe(int index) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return fmt::format("{}, sm_{}{}, {} multiprocessors, {} MiB, {}, {}", properties.name,
                     properties.major, properties.minor, properties.multiProcessorCount,
                     properties.totalGlobalMem >> 20, describe_matmul(), describe_nccl());
}

}  // namespace

const Backend& backend() {
  static const Backend present{.count = count_devices,
                               .absence = absence,
                               .describe = describe,
                               .reaches = reaches,
                               .make_stream = make_stream,
                               .memory = make_memory,
                               .transports = nccl_transports(),
                               .fetch = fetch,
                               .mark = mark,
                               .is_idle = is_idle};
  return present;
}

}  // namespace zg::cuda

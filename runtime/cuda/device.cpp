#include "zerograd/runtime/cuda/device.h"

#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/cublaslt.h"
#include "zerograd/runtime/cuda/nccl.h"

namespace zg::cuda {
namespace {

// Without a driver the runtime library reports an old one, and leaves the count alone.
int count_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::string absence() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {};
  cudaGetLastError();
  int version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess && version == 0)
    return "there is no NVIDIA driver (libcuda.so.1)";
  return error == cudaSuccess ? "the driver shows no device"
                              : std::string("the CUDA runtime says: ") + cudaGetErrorString(error);
}

std::string describe(int index) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return std::string(properties.name) + ", sm_" + std::to_string(properties.major) +
         std::to_string(properties.minor) + ", " + std::to_string(properties.multiProcessorCount) +
         " multiprocessors, " + std::to_string(properties.totalGlobalMem >> 20) + " MiB, " +
         describe_matmul() + ", " + describe_nccl();
}

}  // namespace

bool reaches(int index, int other) {
  int can = index == other;
  if (!can) check(cudaDeviceCanAccessPeer(&can, index, other), "cudaDeviceCanAccessPeer");
  return can != 0;
}

const Backend& backend() {
  static const Backend present{.count = count_devices,
                               .absence = absence,
                               .describe = describe,
                               .reaches = reaches,
                               .make_stream = make_stream,
                               .memory = make_memory,
                               .transports = nccl_transports()};
  return present;
}

}  // namespace zg::cuda

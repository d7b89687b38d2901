#include "zerograd/runtime/cuda/api.h"

#include <cstdlib>
#include <map>
#include <mutex>

#include "zerograd/runtime/text/format.h"

namespace zg::cuda {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error: it is reported here and must not fail the next call
  raise<DeviceError>("cuda: {}: {}", what, cudaGetErrorString(error));
}

std::string describe(CUresult error) {
  const char* name = nullptr;
  const bool has_name = driver().error_name(error, &name) == CUDA_SUCCESS && name;
  return fmt::format("{} ({})", has_name ? name : "an unknown error", static_cast<int>(error));
}

void check(CUresult error, const char* what) {
  if (error != CUDA_SUCCESS) raise<DeviceError>("cuda: {}: {}", what, describe(error));
}

namespace {

/// The primary context of a device. It is retained once and lives as long as the process, as the
/// CUDA runtime's own reference does.
CUcontext primary_context(int index) {
  static std::mutex mutex;
  static std::map<int, CUcontext> contexts;
  const std::lock_guard lock(mutex);
  CUcontext& context = contexts[index];
  if (context) return context;
  CUdevice device;
  check(driver().device(&device, index), "cuDeviceGet");
  check(driver().retain_context(&context, device), "cuDevicePrimaryCtxRetain");
  return context;
}

}  // namespace

OnDevice::OnDevice(int index) {
  check(driver().push_context(primary_context(index)), "cuCtxPushCurrent");
}

OnDevice::~OnDevice() {
  CUcontext popped;
  driver().pop_context(&popped);
}

int hardware_connections() {
  static const int connections = [] {
    constexpr int by_default = 8, most = 32;
    constexpr const char* name = "CUDA_DEVICE_MAX_CONNECTIONS";
    setenv(name, std::to_string(most).c_str(), 0);
    const int wanted = std::atoi(std::getenv(name));
    return wanted >= 1 && wanted <= most ? wanted : by_default;
  }();
  return connections;
}

namespace {

template <class Function>
void find(Function& function, const char* symbol, unsigned version = 11020) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(symbol, &found, version, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(symbol, &found, cudaEnableDefault, &result);
#endif
  check(error, symbol);
  if (result != cudaDriverEntryPointSuccess || !found)
    raise<DeviceError>("cuda: the driver lacks {}; expected one of CUDA {}.{} or newer", symbol,
                       version / 1000, version / 10 % 100);
  function = reinterpret_cast<Function>(found);
}

Driver find_all() {
  hardware_connections();  // sets the variable before the first context is created
  Driver found = {};
  find(found.error_name, "cuGetErrorName");
  find(found.device, "cuDeviceGet");
  find(found.retain_context, "cuDevicePrimaryCtxRetain");
  find(found.push_context, "cuCtxPushCurrent");
  find(found.pop_context, "cuCtxPopCurrent");
  find(found.reserve, "cuMemAddressReserve");
  find(found.free_address, "cuMemAddressFree");
  find(found.create, "cuMemCreate");
  find(found.release, "cuMemRelease");
  find(found.map, "cuMemMap");
  find(found.unmap, "cuMemUnmap");
  find(found.set_access, "cuMemSetAccess");
  return found;
}

}  // namespace

const Driver& driver() {
  static const Driver found = find_all();
  return found;
}

EncodeTensorMap encode_tensor_map() {
  static const EncodeTensorMap function = [] {
    EncodeTensorMap found = nullptr;
    find(found, "cuTensorMapEncodeTiled", 12000);
    return found;
  }();
  return function;
}

}  // namespace zg::cuda

#include "zerograd/runtime/cuda/api.h"

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error: it is reported here and must not fail the next call
  throw DeviceError(fmt::format("cuda: {}: {}", what, cudaGetErrorString(error)));
}

void check(CUresult error, const char* what) {
  if (error != CUDA_SUCCESS)
    throw DeviceError(
        fmt::format("cuda: {}: the driver's error {}", what, static_cast<int>(error)));
}

OnDevice::OnDevice(int index) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ != index) check(cudaSetDevice(index), "cudaSetDevice");
}

OnDevice::~OnDevice() { cudaSetDevice(before_); }

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
    throw DeviceError(fmt::format("cuda: the driver lacks {}; expected one of CUDA {}.{} or newer",
                                  symbol, version / 1000, version / 10 % 100));
  function = reinterpret_cast<Function>(found);
}

Driver find_all() {
  Driver found = {};
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

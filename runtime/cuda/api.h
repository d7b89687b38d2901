#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "zerograd/runtime/device.h"

namespace zg::cuda {

/// Throws DeviceError "what: the runtime's words" unless `error` is cudaSuccess.
void check(cudaError_t error, const char* what);
void check(CUresult error, const char* what);

/// RAII: calls of this thread mean the index-th device; the one before afterwards.
class OnDevice {
 public:
  explicit OnDevice(int index);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

/// An error that a kernel found and cannot throw. The first thread that finds one writes it to
/// memory that host and device share. The next synchronize() throws it as a ShapeError. `op` and
/// `name` are string literals of the host, which a kernel only passes on.
struct Fault {
  unsigned found = 0;
  const char *op = nullptr, *name = nullptr;
  long long value = 0, place = 0, limit = 0;  ///< expected: 0 to limit - 1; no 0 if limit is 0
};

/// The queue behind a Stream of a CUDA device, and the place where its kernels report faults.
cudaStream_t handle(const Stream& stream);
Fault* fault_place(const Stream& stream);

/// The driver's own interface, which the runtime library hands out: nothing links against it.
struct Driver {
  CUresult (*reserve)(CUdeviceptr*, size_t bytes, size_t alignment, CUdeviceptr fixed,
                      unsigned long long flags);
  CUresult (*free_address)(CUdeviceptr, size_t bytes);
  CUresult (*create)(CUmemGenericAllocationHandle*, size_t bytes, const CUmemAllocationProp*,
                     unsigned long long flags);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*map)(CUdeviceptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle,
                  unsigned long long flags);
  CUresult (*unmap)(CUdeviceptr, size_t bytes);
  CUresult (*set_access)(CUdeviceptr, size_t bytes, const CUmemAccessDesc*, size_t count);
};
const Driver& driver();  ///< throws DeviceError when the driver is older than these functions

/// cuTensorMapEncodeTiled, of drivers of CUDA 12 or newer: throws DeviceError where it is absent.
using EncodeTensorMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t rank,
                                     void* start, const cuuint64_t* extents,
                                     const cuuint64_t* strides, const cuuint32_t* box,
                                     const cuuint32_t* steps, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion,
                                     CUtensorMapFloatOOBfill);
EncodeTensorMap encode_tensor_map();

}  // namespace zg::cuda

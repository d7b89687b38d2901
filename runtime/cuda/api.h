#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "zerograd/runtime/device.h"

namespace zg::cuda {

/// Throws DeviceError "what: CUDA's error text" unless `error` reports success.
void check(cudaError_t error, const char* what);
void check(CUresult error, const char* what);

/// RAII: selects the index-th device for this thread. The destructor selects the previous one.
class OnDevice {
 public:
  explicit OnDevice(int index);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

/// An invalid value that a kernel found. A kernel cannot throw, so the first thread that finds one
/// writes it to memory that host and device share. The next synchronize() throws a ShapeError. `op`
/// and `name` point to string literals of the host. A kernel copies only these pointers.
struct Fault {
  unsigned found = 0;
  const char *op = nullptr, *name = nullptr;
  long long value = 0, place = 0, limit = 0;  ///< valid: 0 to limit - 1; if limit is 0: not 0
};

/// The CUDA stream of a Stream, and the address where the kernels of the Stream report a Fault.
cudaStream_t handle(const Stream& stream);
Fault* fault_place(const Stream& stream);

/// Functions of the driver API. The runtime library returns their addresses: nothing links libcuda.
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
const Driver& driver();  ///< throws DeviceError when the driver has no such functions

/// cuTensorMapEncodeTiled of CUDA 12 or newer. encode_tensor_map() throws DeviceError without it.
using EncodeTensorMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t rank,
                                     void* start, const cuuint64_t* extents,
                                     const cuuint64_t* strides, const cuuint32_t* box,
                                     const cuuint32_t* steps, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion,
                                     CUtensorMapFloatOOBfill);
EncodeTensorMap encode_tensor_map();

}  // namespace zg::cuda

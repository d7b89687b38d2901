#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "zerograd/runtime/device.h"

namespace zg::cuda {

/// Throws DeviceError "what: CUDA's error text" unless `error` reports success.
ZG_API void check(cudaError_t error, const char* what);
void check(CUresult error, const char* what);
std::string describe(CUresult error);  ///< "CUDA_ERROR_OUT_OF_MEMORY (2)"

/// RAII: makes the primary context of the index-th device current for this thread. The destructor
/// restores the context that was current before, or none. cudaSetDevice(before) could not do this:
/// for a thread that chose no device, `before` is 0, and the call creates a context on device 0,
/// which takes about half a gigabyte for the process of every rank.
class ZG_API OnDevice {
 public:
  explicit OnDevice(int index);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
};

/// The op and the argument in which a kernel found an invalid value. A number, because a string
/// literal in a kernel is an address of the device, which the host cannot read.
enum class FaultSite : unsigned {
  none,
  attention_backward_copies,  ///< a copy to shared memory did not arrive; `place` is the block
  attention_backward_key_lengths,
  attention_backward_starts,
  attention_forward_copies,  ///< as attention_backward_copies
  attention_forward_key_lengths,
  attention_forward_starts,
  binary_divisor,
  cross_entropy_backward_targets,
  cross_entropy_forward_targets,
  embedding_backward_ids,
  embedding_forward_ids,
  gather_index,
  projection_cross_entropy_targets,
  rope_positions,
  scatter_add_index
};

/// An invalid value that a kernel found. A kernel cannot throw, so the first thread that finds one
/// writes it to memory that host and device share. The next synchronize() throws a ShapeError, or a
/// DeviceError for attention_*_copies. A Fault holds no pointer.
struct Fault {
  unsigned found = 0;
  FaultSite site = FaultSite::none;
  /// Valid values are 0 to limit - 1. If limit is 0, all values but 0 are valid.
  long long value = 0, place = 0, limit = 0;
};

/// The CUDA stream of a Stream, and the address where the kernels of the Stream report a Fault. A
/// meta device has no CUDA stream, and its fault_place() is null.
ZG_API cudaStream_t handle(const Stream& stream);
Fault* fault_place(const Stream& stream);

/// Loads the code of a kernel onto the current device, the index-th, unless it is loaded already.
/// Without this the first launch loads the code. The driver may then wait until the device is idle,
/// which can be a deadlock while a collective runs (collective_gate.h). Returns the bytes of the
/// kernel's own arrays in shared memory. `registers`: the number for each thread, or 0: any. A
/// kernel that moves registers between its warps (setmaxnreg) would wait forever for registers if
/// the compiler had chosen another number; throws DeviceError, which names `op`.
ZG_API size_t load_kernel(const void* kernel, int index, const char* op, int registers = 0);

/// The number of hardware connections of a device. CUDA distributes its streams over them.
/// CUDA_DEVICE_MAX_CONNECTIONS is set to the maximum, 32, before the first context is created,
/// unless the user has set it. Streams that share a connection wait for each other's work, so two
/// ranks that launch two collectives in different orders would wait for ever. stream.cpp reuses
/// streams, so that a device never has more streams than were in use at the same time.
/// NcclTransport refuses to run if a device has more streams than connections.
int hardware_connections();

/// Functions of the driver API. The runtime library returns their addresses, so that the program is
/// not linked with libcuda.
struct Driver {
  CUresult (*error_name)(CUresult, const char**);
  CUresult (*device)(CUdevice*, int index);
  CUresult (*retain_context)(CUcontext*, CUdevice);
  CUresult (*push_context)(CUcontext);
  CUresult (*pop_context)(CUcontext*);
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

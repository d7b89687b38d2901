#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuda_runtime_api.h"
#include "tests/fakes/cuda/launch.h"
#include "tests/fakes/cuda/tensor_map.h"

// Emulated devices. Queued work runs as late as possible, when a caller waits. Device memory is
// accessible only to queued work. A direct access from the host crashes, as on a machine with a
// GPU.
struct EmulatedStream {
  struct Work {
    std::function<bool()> ready;  // null: at once
    std::function<void()> action;
  };
  std::deque<Work> work;
};
struct EmulatedEvent {
  EmulatedStream* stream = nullptr;
};

namespace zg::emulator {
namespace {

constexpr int devices = 8;
/// The last device lacks the features of sm_90a, for the kernels that do not need them.
int compute_capability(int device) { return device == devices - 1 ? 8 : 9; }
constexpr size_t memory_of_a_device = size_t{8} << 30;

/// Memory mapped by devices, and the number of streams that execute work on it.
struct DeviceMemory {
  std::mutex mutex;
  std::map<std::byte*, size_t> mapped;
  int users = 0;

  void protect(int protection) {
    for (const auto& [start, bytes] : mapped) mprotect(start, bytes, protection);
  }
};
DeviceMemory memory;
thread_local int current_device = 0;

/// Makes device memory accessible while it exists.
class Access {
 public:
  Access() {
    std::lock_guard lock(memory.mutex);
    if (memory.users++ == 0) memory.protect(PROT_READ | PROT_WRITE);
  }
  ~Access() {
    std::lock_guard lock(memory.mutex);
    if (--memory.users == 0) memory.protect(PROT_NONE);
  }
};

/// Runs all work that is ready. False: some work remains.
bool advance(EmulatedStream& stream) {
  std::optional<Access> access;
  while (!stream.work.empty()) {
    if (const auto& ready = stream.work.front().ready; ready && !ready()) return false;
    const std::function<void()> next = std::move(stream.work.front().action);
    stream.work.pop_front();
    if (!access) access.emplace();
    next();
  }
  return true;
}

void drain(EmulatedStream& stream) {
  while (!advance(stream)) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace

bool is_mapped(const void* place) {
  std::lock_guard lock(memory.mutex);
  const auto* address = static_cast<const std::byte*>(place);
  auto next = memory.mapped.upper_bound(const_cast<std::byte*>(address));
  if (next == memory.mapped.begin()) return false;
  --next;
  return address < next->first + next->second;
}

namespace {

std::mutex pinned_mutex;
std::map<const std::byte*, size_t> pinned;

bool is_pinned(const void* place) {
  std::lock_guard lock(pinned_mutex);
  const auto* address = static_cast<const std::byte*>(place);
  auto next = pinned.upper_bound(address);
  if (next == pinned.begin()) return false;
  --next;
  return address < next->first + next->second;
}

CUresult reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                 unsigned long long) {
  void* start = mmap(nullptr, bytes + alignment, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = (reinterpret_cast<CUdeviceptr>(start) + alignment - 1) / alignment * alignment;
  return CUDA_SUCCESS;
}
CUresult free_address(CUdeviceptr address, size_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* part, size_t bytes, const CUmemAllocationProp*,
                unsigned long long) {
  *part = bytes;
  return CUDA_SUCCESS;
}
CUresult release_part(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
CUresult map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle part,
             unsigned long long) {
  return part == bytes && address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult unmap(CUdeviceptr address, size_t bytes) {
  std::lock_guard lock(memory.mutex);
  auto* const start = reinterpret_cast<std::byte*>(address);
  for (auto part = memory.mapped.lower_bound(start);
       part != memory.mapped.end() && part->first < start + bytes;)
    part = memory.mapped.erase(part);
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t) {
  std::lock_guard lock(memory.mutex);
  auto* const start = reinterpret_cast<std::byte*>(address);
  // New device memory is undefined: fill it with NaN of every float format.
  if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(start, 0xff, bytes);
  if (memory.users == 0) mprotect(start, bytes, PROT_NONE);
  const auto next = memory.mapped.lower_bound(start);
  if (const auto last = next == memory.mapped.begin() ? next : std::prev(next);
      last != next && last->first + last->second == start)
    last->second += bytes;  // adjacent ranges are merged, as an arena grows
  else
    memory.mapped[start] = bytes;
  return CUDA_SUCCESS;
}

/// Encodes four axes of two-byte elements with box rows of 128 bytes.
CUresult encode_tensor_map(CUtensorMap* to, CUtensorMapDataType, cuuint32_t rank, void* start,
                           const cuuint64_t* extents, const cuuint64_t* strides,
                           const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                           CUtensorMapFloatOOBfill) {
  constexpr cuuint32_t most_in_box = 256;
  TensorMap map{static_cast<const std::byte*>(start), {}, {}, {}};
  bool good = rank == 4 && reinterpret_cast<uintptr_t>(start) % 16 == 0 && box[0] * 2 == 128 &&
              swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  for (int axis = 0; axis < 4; ++axis) {
    map.extents[axis] = extents[axis];
    map.box[axis] = box[axis];
    good =
        good && extents[axis] > 0 && box[axis] > 0 && box[axis] <= most_in_box && steps[axis] == 1;
    if (axis == 3) continue;
    map.strides[axis] = strides[axis];
    good =
        good && strides[axis] > 0 && strides[axis] % 16 == 0 && strides[axis] < uint64_t{1} << 40;
  }
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) {
  enqueue_when(stream, nullptr, std::move(work));
}

void enqueue_when(cudaStream_t stream, std::function<bool()> ready, std::function<void()> work) {
  stream->work.push_back({std::move(ready), std::move(work)});
#ifdef __SANITIZE_ADDRESS__
  constexpr bool at_once = true;
#else
  static const bool at_once = std::getenv("ZG_EMULATOR_AT_ONCE") != nullptr;
#endif
  if (at_once) advance(*stream);
}

void launch(const char* kernel, Extent grid, Extent block, size_t shared_bytes, cudaStream_t stream,
            std::function<void()> body) {
  enqueue(stream,
          [=, body = std::move(body)] { run_grid(kernel, grid, block, shared_bytes, body); });
}

}  // namespace zg::emulator

using namespace zg::emulator;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= devices) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated device, no GPU");
  properties->totalGlobalMem = memory_of_a_device;
  properties->major = compute_capability(device);
  properties->multiProcessorCount = 4;
  properties->sharedMemPerBlockOptin = size_t{227} << 10;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= devices) return cudaErrorInvalidValue;
  *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : compute_capability(device);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (device < 0 || device >= devices || peer < 0 || peer >= devices) return cudaErrorInvalidDevice;
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* name, int bytes, int device) {
  if (device < 0 || device >= devices) return cudaErrorInvalidDevice;
  std::snprintf(name, static_cast<size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the emulator";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaFree(void*) { return cudaSuccess; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new EmulatedStream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  drain(*stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return advance(*stream) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  drain(*stream);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  // Pageable host memory is read or written before the call returns.
  if (!is_mapped(from) && !is_pinned(from)) {
    const auto* start = static_cast<const std::byte*>(from);
    enqueue(stream, [to, staged = std::vector<std::byte>(start, start + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    });
  } else {
    enqueue(stream, [=] { std::memmove(to, from, bytes); });
  }
  if (!is_mapped(to) && !is_pinned(to)) drain(*stream);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  enqueue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** place, size_t bytes, unsigned) {
  *place = std::malloc(bytes);
  return *place ? cudaHostRegister(*place, bytes, cudaHostRegisterPortable)
                : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* place) {
  cudaHostUnregister(place);
  std::free(place);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* place, size_t bytes, unsigned) {
  std::lock_guard lock(pinned_mutex);
  pinned[static_cast<const std::byte*>(place)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* place) {
  std::lock_guard lock(pinned_mutex);
  pinned.erase(static_cast<const std::byte*>(place));
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->stream) drain(*event->stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->stream && event->stream != stream)
    enqueue(stream, [other = event->stream] { drain(*other); });
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string, void*> functions = {
      {"cuMemAddressReserve", reinterpret_cast<void*>(reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(free_address)},
      {"cuMemCreate", reinterpret_cast<void*>(create)},
      {"cuMemRelease", reinterpret_cast<void*>(release_part)},
      {"cuMemMap", reinterpret_cast<void*>(map)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(encode_tensor_map)}};
  const auto found = functions.find(symbol);
  *function = found == functions.end() ? nullptr : found->second;
  *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

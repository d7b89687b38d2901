#include <sys/mman.h>

#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "tests/fakes/cuda/devices.h"
#include "tests/fakes/cuda/launch.h"
#include "tests/fakes/cuda/queues.h"
#include "tests/fakes/cuda/tensor_map.h"

// Device memory and the functions of the driver that runtime/cuda uses. Only queued work can access
// device memory. A direct access from the host crashes, as on a machine with a GPU.
namespace zg::emulator {
namespace {

/// Memory that some devices can access: bit i is device i.
struct Part {
  size_t bytes;
  unsigned devices;
};

struct DeviceMemory {
  std::mutex mutex;
  std::map<std::byte*, Part> accessible;  // adjacent parts with the same devices are merged
  std::map<std::byte*, size_t> mapped;    // with or without access
  int users = 0;                          // threads that run queued work

  void protect(int protection) {
    for (const auto& [start, part] : accessible) mprotect(start, part.bytes, protection);
  }
};

DeviceMemory& memory() {
  static DeviceMemory& value = *new DeviceMemory;
  return value;
}

CUresult planted(const char* call) { return static_cast<CUresult>(planted_failure(call)); }

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

CUresult create(CUmemGenericAllocationHandle* part, size_t bytes, const CUmemAllocationProp* wanted,
                unsigned long long) {
  const SerialisedCall call("cuMemCreate");
  if (const CUresult failure = planted("cuMemCreate"); failure != CUDA_SUCCESS) return failure;
  if (!is_device(wanted->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  *part = bytes;
  return CUDA_SUCCESS;
}

CUresult release_part(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }

CUresult map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle part,
             unsigned long long) {
  const SerialisedCall call("cuMemMap");
  if (const CUresult failure = planted("cuMemMap"); failure != CUDA_SUCCESS) return failure;
  auto* const start = reinterpret_cast<std::byte*>(address);
  const std::lock_guard lock(memory().mutex);
  auto& mapped = memory().mapped;
  const auto next = mapped.lower_bound(start);
  const bool is_free =
      (next == mapped.end() || next->first >= start + bytes) &&
      (next == mapped.begin() || std::prev(next)->first + std::prev(next)->second <= start);
  if (part != bytes || !address || !is_free) return CUDA_ERROR_INVALID_VALUE;
  mapped[start] = bytes;
  return CUDA_SUCCESS;
}

/// Takes [start, start + bytes) out of the memory that devices can access.
void make_inaccessible(std::byte* start, size_t bytes) {
  auto& accessible = memory().accessible;
  std::byte* const end = start + bytes;
  auto part = accessible.upper_bound(start);
  if (part != accessible.begin()) --part;
  while (part != accessible.end() && part->first < end) {
    const auto [first, old] = *part;
    if (first + old.bytes <= start) {
      ++part;
      continue;
    }
    part = accessible.erase(part);
    if (first < start) accessible[first] = {static_cast<size_t>(start - first), old.devices};
    if (first + old.bytes > end)
      accessible[end] = {static_cast<size_t>(first + old.bytes - end), old.devices};
  }
}

CUresult unmap(CUdeviceptr address, size_t bytes) {
  const SerialisedCall call("cuMemUnmap");
  const std::lock_guard lock(memory().mutex);
  auto* const start = reinterpret_cast<std::byte*>(address);
  make_inaccessible(start, bytes);
  mprotect(start, bytes, PROT_NONE);
  auto& mapped = memory().mapped;
  for (auto part = mapped.lower_bound(start); part != mapped.end() && part->first < start + bytes;)
    part = mapped.erase(part);
  return CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                    size_t count) {
  const SerialisedCall call("cuMemSetAccess");
  if (const CUresult failure = planted("cuMemSetAccess"); failure != CUDA_SUCCESS) return failure;
  const std::lock_guard lock(memory().mutex);
  auto* const start = reinterpret_cast<std::byte*>(address);
  const auto found = memory().mapped.find(start);
  if (found == memory().mapped.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  unsigned devices = 0;
  for (size_t i = 0; i < count; ++i) devices |= 1u << access[i].location.id;
  // New device memory is undefined: fill it with NaN of every float format.
  if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(start, 0xff, bytes);
  if (memory().users == 0) mprotect(start, bytes, PROT_NONE);
  auto& accessible = memory().accessible;
  make_inaccessible(start, bytes);
  const auto next = accessible.lower_bound(start);
  if (const auto last = next == accessible.begin() ? next : std::prev(next);
      last != next && last->first + last->second.bytes == start && last->second.devices == devices)
    last->second.bytes += bytes;
  else
    accessible[start] = {bytes, devices};
  return CUDA_SUCCESS;
}

CUresult error_name(CUresult error, const char** name) {
  static const std::map<int, const char*> names = {
      {CUDA_SUCCESS, "CUDA_SUCCESS"},
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
      {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}};
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult get_device(CUdevice* device, int index) {
  if (!is_device(index)) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
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
  std::memset(static_cast<void*>(to), 0, sizeof *to);
  std::memcpy(static_cast<void*>(to), &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace

Access::Access() {
  const std::lock_guard lock(memory().mutex);
  if (memory().users++ == 0) memory().protect(PROT_READ | PROT_WRITE);
}

Access::~Access() {
  const std::lock_guard lock(memory().mutex);
  if (--memory().users == 0) memory().protect(PROT_NONE);
}

namespace {

/// Whether [start, start + bytes) lies in parts that all these devices can access.
bool covers(const std::byte* start, size_t bytes, unsigned devices) {
  const std::lock_guard lock(memory().mutex);
  const auto& accessible = memory().accessible;
  const std::byte *at = start, *const end = start + bytes;
  do {
    auto next = accessible.upper_bound(const_cast<std::byte*>(at));
    if (next == accessible.begin()) return false;
    --next;
    const std::byte* const part_end = next->first + next->second.bytes;
    if (at >= part_end || (next->second.devices & devices) != devices) return false;
    at = part_end;
  } while (at < end);
  return true;
}

}  // namespace

bool is_mapped(const void* place) { return covers(static_cast<const std::byte*>(place), 1, 0); }

bool is_accessible(const void* place, size_t bytes, int device) {
  return covers(static_cast<const std::byte*>(place), bytes, 1u << device);
}

void* driver_function(const std::string& symbol) {
  static const std::map<std::string, void*> functions = {
      {"cuGetErrorName", reinterpret_cast<void*>(error_name)},
      {"cuDeviceGet", reinterpret_cast<void*>(get_device)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain_context)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(push_context)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(pop_context)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(free_address)},
      {"cuMemCreate", reinterpret_cast<void*>(create)},
      {"cuMemRelease", reinterpret_cast<void*>(release_part)},
      {"cuMemMap", reinterpret_cast<void*>(map)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(encode_tensor_map)}};
  const auto found = functions.find(symbol);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace zg::emulator

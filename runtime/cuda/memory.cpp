#include "zerograd/runtime/cuda/memory.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <shared_mutex>
#include <string>
#include <vector>

#include "zerograd/runtime/arena.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/collective_gate.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

/// The address ranges that the process has registered as pinned, or reserved for device memory, by
/// start address. A stream may copy between the memory of any two devices, so all devices share
/// these maps.
struct Ranges {
  std::shared_mutex mutex;
  std::map<const std::byte*, size_t> pinned, device;

  static Ranges& all() {
    static Ranges& ranges = *new Ranges;  // outlives devices that are destroyed at the end
    return ranges;
  }
  /// The bytes from `place` to the end of the range that holds it; 0: none does.
  static size_t rest(const std::map<const std::byte*, size_t>& ranges, const void* place) {
    const auto* address = static_cast<const std::byte*>(place);
    const auto next = ranges.upper_bound(address);
    if (next == ranges.begin()) return 0;
    const auto& [start, bytes] = *std::prev(next);
    return address < start + bytes ? static_cast<size_t>(start + bytes - address) : 0;
  }
};

/// One reserved range of virtual addresses; physical memory is mapped from its beginning on as the
/// arena grows. So adjacent free blocks can always merge, and the arena's reserved bytes equal the
/// bytes that the device has allocated.
class DeviceMemory final : public ArenaMemory {
 public:
  explicit DeviceMemory(int index) : index_(index) {
    const QuietProcess quiet;
    const OnDevice on(index);  // creates the context that the driver's functions need
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    // Free blocks count as reserved, so twice the memory of the device is enough for any layout.
    constexpr int64_t step = Arena::grow_bytes;
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    for (int other = 0; other < count; ++other)
      if (reaches(other, index))
        access_.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = other},
                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    capacity_ = static_cast<int64_t>(properties.totalGlobalMem) * 2 / step * step;
    check(driver().reserve(&address_, static_cast<size_t>(capacity_), static_cast<size_t>(step), 0,
                           0),
          "cuMemAddressReserve");
    const std::lock_guard lock(Ranges::all().mutex);
    Ranges::all().device[base()] = static_cast<size_t>(capacity_);
  }
  ~DeviceMemory() override {
    {
      const std::lock_guard lock(Ranges::all().mutex);
      Ranges::all().device.erase(base());
    }
    const QuietProcess quiet;
    if (mapped_bytes_ > 0) driver().unmap(address_, static_cast<size_t>(mapped_bytes_));
    for (CUmemGenericAllocationHandle chunk : chunks_) driver().release(chunk);
    driver().free_address(address_, static_cast<size_t>(capacity_));
  }

  std::byte* base() const override {
    return reinterpret_cast<std::byte*>(address_);  // NOLINT: the driver gives a number
  }
  int64_t capacity() const override { return capacity_; }
  std::string cause() const override { return cause_; }
  bool grow(int64_t from, int64_t to) override {
    const QuietProcess quiet;
    const OnDevice on(index_);
    const auto bytes = static_cast<size_t>(to - from);
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = index_};
    CUmemGenericAllocationHandle chunk;
    if (!succeeds(driver().create(&chunk, bytes, &wanted, 0), "cuMemCreate")) return false;
    const CUdeviceptr begin = address_ + static_cast<CUdeviceptr>(from);
    const CUresult mapped = driver().map(begin, bytes, 0, chunk, 0);
    const CUresult opened = mapped == CUDA_SUCCESS
                                ? driver().set_access(begin, bytes, access_.data(), access_.size())
                                : mapped;
    if (opened != CUDA_SUCCESS) {  // leave nothing behind: the arena may try again
      if (mapped == CUDA_SUCCESS) driver().unmap(begin, bytes);
      driver().release(chunk);
      return succeeds(opened, mapped == CUDA_SUCCESS ? "cuMemSetAccess" : "cuMemMap");
    }
    chunks_.push_back(chunk);
    mapped_bytes_ = to;
    return true;
  }

 private:
  // For a lack of memory it sets cause_ and returns false. It throws any other error.
  bool succeeds(CUresult result, const char* call) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
      cause_ = fmt::format("; {}: {}", call, describe(result));
    else
      check(result, call);
    return result == CUDA_SUCCESS;
  }

  const int index_;
  CUdeviceptr address_ = 0;
  int64_t capacity_ = 0, mapped_bytes_ = 0;
  std::string cause_;
  std::vector<CUmemAccessDesc> access_;  // for every device that can read this memory
  std::vector<CUmemGenericAllocationHandle> chunks_;
};

/// Host memory that is page-locked as it grows, so that copies run asynchronously. Each growth is a
/// registration of its own. A single registration would have to be removed and made again while
/// copies use it. Registrations of a fixed size that no tensor may cross would change the layout of
/// the arena and the bytes that a plan counts. So a tensor may span registrations, and
/// CudaStream::copy splits copies at their boundaries.
class PinnedMemory final : public ArenaMemory {
 public:
  explicit PinnedMemory(int index) : index_(index), memory_(host_memory()) {}
  ~PinnedMemory() override {
    const QuietProcess quiet;
    for (std::byte* chunk : chunks_) {
      const std::lock_guard lock(Ranges::all().mutex);
      Ranges::all().pinned.erase(chunk);
    }
    try {
      const OnDevice on(index_);
      for (std::byte* chunk : chunks_) cudaHostUnregister(chunk);
    } catch (const DeviceError&) {  // a kernel failed before: all CUDA calls of the process fail
    }
  }

  std::byte* base() const override { return memory_->base(); }
  int64_t capacity() const override { return memory_->capacity(); }
  std::string cause() const override { return cause_.empty() ? memory_->cause() : cause_; }
  bool grow(int64_t from, int64_t to) override {
    if (!memory_->grow(from, to)) return false;
    const QuietProcess quiet;
    const OnDevice on(index_);  // without it the call would create a context on device 0
    std::byte* const chunk = base() + from;
    const auto bytes = static_cast<size_t>(to - from);
    if (const cudaError_t error = cudaHostRegister(chunk, bytes, cudaHostRegisterPortable);
        error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      cause_ = fmt::format("; cudaHostRegister: {}", cudaGetErrorString(error));
      return false;
    } else {
      check(error, "cudaHostRegister");
    }
    const std::lock_guard lock(Ranges::all().mutex);
    Ranges::all().pinned[chunk] = bytes;
    chunks_.push_back(chunk);
    return true;
  }

 private:
  const int index_;
  const std::unique_ptr<ArenaMemory> memory_;
  std::string cause_;
  std::vector<std::byte*> chunks_;
};

}  // namespace

std::unique_ptr<ArenaMemory> make_memory(int index, Space space) {
  if (space == Space::pinned) return std::make_unique<PinnedMemory>(index);
  return std::make_unique<DeviceMemory>(index);
}

bool reaches(int index, int other) {
  int can = index == other;
  if (!can) check(cudaDeviceCanAccessPeer(&can, index, other), "cudaDeviceCanAccessPeer");
  return can != 0;
}

size_t bytes_in_one_registration(const void* place, size_t bytes) {
  const std::shared_lock lock(Ranges::all().mutex);
  const size_t rest = Ranges::rest(Ranges::all().pinned, place);
  return rest > 0 ? std::min(rest, bytes) : bytes;
}

bool is_pageable(const void* place) {
  {
    const std::shared_lock lock(Ranges::all().mutex);
    if (Ranges::rest(Ranges::all().device, place) > 0 ||
        Ranges::rest(Ranges::all().pinned, place) > 0)
      return false;
  }
  // Memory of other libraries, through DLPack.
  cudaPointerAttributes attributes;
  check(cudaPointerGetAttributes(&attributes, place), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace zg::cuda

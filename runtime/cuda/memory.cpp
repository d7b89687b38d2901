#include <algorithm>
#include <vector>

#include "zerograd/runtime/arena.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/device.h"
#include "zerograd/runtime/error.h"

namespace zg::cuda {
namespace {

/// A range of the device's addresses, with physical memory mapped behind its beginning as it
/// grows: so freed neighbours always merge, and what is reserved is what the device gave.
class DeviceMemory final : public ArenaMemory {
 public:
  explicit DeviceMemory(int index) : index_(index) {
    const OnDevice on(index);
    cudaFree(nullptr);  // makes the context that the driver's functions need
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    // Holes are counted with what is reserved, so twice the memory leaves room for any layout.
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
  }
  ~DeviceMemory() override {
    if (held_ > 0) driver().unmap(address_, static_cast<size_t>(held_));
    for (CUmemGenericAllocationHandle part : parts_) driver().release(part);
    driver().free_address(address_, static_cast<size_t>(capacity_));
  }

  std::byte* base() const override { return reinterpret_cast<std::byte*>(address_); }
  int64_t capacity() const override { return capacity_; }
  bool grow(int64_t from, int64_t to) override {
    const OnDevice on(index_);
    const auto bytes = static_cast<size_t>(to - from);
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = index_};
    CUmemGenericAllocationHandle part;
    if (driver().create(&part, bytes, &wanted, 0) != CUDA_SUCCESS) return false;
    const CUdeviceptr place = address_ + static_cast<CUdeviceptr>(from);
    if (driver().map(place, bytes, 0, part, 0) != CUDA_SUCCESS) {
      driver().release(part);
      return false;
    }
    parts_.push_back(part);
    held_ = to;
    return driver().set_access(place, bytes, access_.data(), access_.size()) == CUDA_SUCCESS;
  }

 private:
  const int index_;
  CUdeviceptr address_ = 0;
  int64_t capacity_ = 0, held_ = 0;
  std::vector<CUmemAccessDesc> access_;  // for every device that can read this memory
  std::vector<CUmemGenericAllocationHandle> parts_;
};

/// The process's memory, page-locked as it grows: copies to and from it run beside the host.
class PinnedMemory final : public ArenaMemory {
 public:
  PinnedMemory() : memory_(host_memory()) {}
  ~PinnedMemory() override {
    for (std::byte* part : parts_) cudaHostUnregister(part);
  }

  std::byte* base() const override { return memory_->base(); }
  int64_t capacity() const override { return memory_->capacity(); }
  bool grow(int64_t from, int64_t to) override {
    if (!memory_->grow(from, to)) return false;
    std::byte* const part = base() + from;
    if (cudaHostRegister(part, static_cast<size_t>(to - from), cudaHostRegisterPortable) !=
        cudaSuccess) {
      cudaGetLastError();
      return false;
    }
    parts_.push_back(part);
    return true;
  }

 private:
  const std::unique_ptr<ArenaMemory> memory_;
  std::vector<std::byte*> parts_;
};

}  // namespace

std::unique_ptr<ArenaMemory> make_memory(int index, Space space) {
  if (space == Space::pinned) return std::make_unique<PinnedMemory>();
  return std::make_unique<DeviceMemory>(index);
}

}  // namespace zg::cuda

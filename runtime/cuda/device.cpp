#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/arena.h"
#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/cublaslt.h"
#include "zerograd/runtime/cuda/nccl.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

// --- memory ---

bool reaches(int index, int other) {
  int can = index == other;
  if (!can) check(cudaDeviceCanAccessPeer(&can, index, other), "cudaDeviceCanAccessPeer");
  return can != 0;
}

/// One reserved range of virtual addresses; physical memory is mapped from its beginning on as the
/// arena grows. So adjacent free blocks can always merge, and the reserved bytes are those that the
/// device gave.
class DeviceMemory final : public ArenaMemory {
 public:
  explicit DeviceMemory(int index) : index_(index) {
    const OnDevice on(index);
    cudaFree(nullptr);  // creates the context that the driver's functions need
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
  }
  ~DeviceMemory() override {
    if (mapped_bytes_ > 0) driver().unmap(address_, static_cast<size_t>(mapped_bytes_));
    for (CUmemGenericAllocationHandle chunk : chunks_) driver().release(chunk);
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
    CUmemGenericAllocationHandle chunk;
    if (driver().create(&chunk, bytes, &wanted, 0) != CUDA_SUCCESS) return false;
    const CUdeviceptr begin = address_ + static_cast<CUdeviceptr>(from);
    if (driver().map(begin, bytes, 0, chunk, 0) != CUDA_SUCCESS) {
      driver().release(chunk);
      return false;
    }
    chunks_.push_back(chunk);
    mapped_bytes_ = to;
    return driver().set_access(begin, bytes, access_.data(), access_.size()) == CUDA_SUCCESS;
  }

 private:
  const int index_;
  CUdeviceptr address_ = 0;
  int64_t capacity_ = 0, mapped_bytes_ = 0;
  std::vector<CUmemAccessDesc> access_;  // for every device that can read this memory
  std::vector<CUmemGenericAllocationHandle> chunks_;
};

/// Host memory that is page-locked as it grows, so that copies run asynchronously.
class PinnedMemory final : public ArenaMemory {
 public:
  PinnedMemory() : memory_(host_memory()) {}
  ~PinnedMemory() override {
    for (std::byte* chunk : chunks_) cudaHostUnregister(chunk);
  }

  std::byte* base() const override { return memory_->base(); }
  int64_t capacity() const override { return memory_->capacity(); }
  bool grow(int64_t from, int64_t to) override {
    if (!memory_->grow(from, to)) return false;
    std::byte* const chunk = base() + from;
    if (cudaHostRegister(chunk, static_cast<size_t>(to - from), cudaHostRegisterPortable) !=
        cudaSuccess) {
      cudaGetLastError();
      return false;
    }
    chunks_.push_back(chunk);
    return true;
  }

 private:
  const std::unique_ptr<ArenaMemory> memory_;
  std::vector<std::byte*> chunks_;
};

std::unique_ptr<ArenaMemory> make_memory(int index, Space space) {
  if (space == Space::pinned) return std::make_unique<PinnedMemory>();
  return std::make_unique<DeviceMemory>(index);
}

// --- streams ---

/// A CUDA stream and its fault record. Streams of a device do not wait for each other implicitly.
class CudaStream final : public Stream {
 public:
  CudaStream(DeviceState& state, const char* name) : state_(state), name_(name) {
    const OnDevice on(state.index);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, sizeof(Fault), cudaHostAllocPortable), "cudaHostAlloc");
    fault_ = new (memory) Fault;
  }
  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
    cudaFreeHost(fault_);
  }

  Device device() const override { return state_.handle(); }
  const Device::Traits& traits() const override { return state_.traits; }
  Device::Type type() const override { return state_.type; }
  Trace* trace() const override { return state_.trace.get(); }
  const char* name() const override { return name_; }

  void synchronize() override {
    const OnDevice on(state_.index);
    check(cudaStreamSynchronize(stream_), name_);
    if (!fault_->found) return;
    const Fault fault = std::exchange(*fault_, {});
    throw ShapeError(
        fmt::format("{}: {}[{}] is {}; expected {}", fault.op, fault.name, fault.place, fault.value,
                    fault.limit > 0 ? fmt::format("0 to {}", fault.limit - 1) : "no 0"));
  }
  void copy(void* to, const void* from, size_t bytes) override {
    const OnDevice on(state_.index);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copy");
  }
  void fill_zero(void* to, size_t bytes) override {
    const OnDevice on(state_.index);
    check(cudaMemsetAsync(to, 0, bytes, stream_), "fill_zero");
  }

  cudaStream_t stream() const { return stream_; }
  Fault* fault() const { return fault_; }

 private:
  DeviceState& state_;  // owns this stream
  const char* const name_;
  cudaStream_t stream_ = nullptr;
  Fault* fault_ = nullptr;
};

std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name) {
  return std::make_unique<CudaStream>(state, name);
}

// --- devices ---

// Without a driver cudaGetDeviceCount reports "insufficient driver" and does not set the count.
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
  return fmt::format("{}, sm_{}{}, {} multiprocessors, {} MiB, {}, {}", properties.name,
                     properties.major, properties.minor, properties.multiProcessorCount,
                     properties.totalGlobalMem >> 20, describe_matmul(), describe_nccl());
}

}  // namespace

cudaStream_t handle(const Stream& stream) {
  return static_cast<const CudaStream&>(stream).stream();
}

Fault* fault_place(const Stream& stream) { return static_cast<const CudaStream&>(stream).fault(); }

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

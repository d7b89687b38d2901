#include "zerograd/runtime/cuda/stream.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/collective_gate.h"
#include "zerograd/runtime/cuda/memory.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

/// Pinned memory of each stream for data from pageable memory. It is not counted as a tensor's.
constexpr size_t staging_bytes = size_t{1} << 20;

std::string describe(const Fault& fault) {
  const char *op = "a kernel", *argument = "an argument";
  const auto name = [&](const char* its_op, const char* its_argument) {
    op = its_op;
    argument = its_argument;
  };
  switch (fault.site) {
    case FaultSite::none:
      break;
    case FaultSite::attention_backward_copies:
    case FaultSite::attention_forward_copies:
      return fmt::format(
          "attention_{}: a copy to shared memory never arrived in block {}; the device takes no "
          "more work from this process",
          fault.site == FaultSite::attention_forward_copies ? "forward" : "backward", fault.place);
    case FaultSite::attention_backward_key_lengths:
      name("attention_backward", "key_lengths");
      break;
    case FaultSite::attention_backward_starts:
      name("attention_backward", "starts");
      break;
    case FaultSite::attention_forward_key_lengths:
      name("attention_forward", "key_lengths");
      break;
    case FaultSite::attention_forward_starts:
      name("attention_forward", "starts");
      break;
    case FaultSite::binary_divisor:
      name("binary", "divisor");
      break;
    case FaultSite::cross_entropy_backward_targets:
      name("cross_entropy_backward", "targets");
      break;
    case FaultSite::cross_entropy_forward_targets:
      name("cross_entropy_forward", "targets");
      break;
    case FaultSite::embedding_backward_ids:
      name("embedding_backward", "ids");
      break;
    case FaultSite::embedding_forward_ids:
      name("embedding_forward", "ids");
      break;
    case FaultSite::gather_index:
      name("gather", "index");
      break;
    case FaultSite::projection_cross_entropy_targets:
      name("projection_cross_entropy", "targets");
      break;
    case FaultSite::rope_positions:
      name("rope", "positions");
      break;
    case FaultSite::scatter_add_index:
      name("scatter_add", "index");
      break;
  }
  return fmt::format("{}: {}[{}] is {}; expected {}", op, argument, fault.place, fault.value,
                     fault.limit > 0 ? fmt::format("0 to {}", fault.limit - 1) : "no 0");
}

/// A CUDA stream, its fault record and its staging memory.
struct Queue {
  cudaStream_t stream = nullptr;
  Fault* fault = nullptr;
  std::byte* staging = nullptr;
};

/// The streams of all devices. A stream is used again rather than destroyed. CUDA gives each new
/// stream the next hardware connection, so that streams which are made again and again would come
/// to share one.
struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<Queue>> idle;
  std::map<int, int> made;

  static Pool& all() {
    static Pool& pool = *new Pool;  // outlives devices that are destroyed at the end
    return pool;
  }
};

Queue make_queue(int index) {
  const QuietProcess quiet;
  const OnDevice on(index);
  Queue queue;
  check(cudaStreamCreateWithFlags(&queue.stream, cudaStreamNonBlocking), "cudaStreamCreate");
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, sizeof(Fault), cudaHostAllocPortable), "cudaHostAlloc");
  queue.fault = new (memory) Fault;
  check(cudaHostAlloc(&memory, staging_bytes, cudaHostAllocPortable), "cudaHostAlloc");
  queue.staging = static_cast<std::byte*>(memory);
  return queue;
}

Queue take_queue(int index) {
  Pool& pool = Pool::all();
  {
    const std::lock_guard lock(pool.mutex);
    if (std::vector<Queue>& idle = pool.idle[index]; !idle.empty()) {
      const Queue queue = idle.back();
      idle.pop_back();
      return queue;
    }
  }
  const Queue queue = make_queue(index);
  const std::lock_guard lock(pool.mutex);
  ++pool.made[index];
  return queue;
}

/// Streams of a device do not wait for each other implicitly.
class CudaStream final : public Stream {
 public:
  CudaStream(DeviceState& state, const char* name)
      : state_(state), name_(name), queue_(take_queue(state.index)) {}
  ~CudaStream() override {
    try {
      const OnDevice on(state_.index);
      cudaStreamSynchronize(queue_.stream);
    } catch (const DeviceError&) {  // after an error of a kernel; the process must end
    }
    *queue_.fault = {};
    const std::lock_guard lock(Pool::all().mutex);
    Pool::all().idle[state_.index].push_back(queue_);
  }

  Device device() const override { return state_.handle(); }
  const Device::Traits& traits() const override { return state_.traits; }
  Device::Type type() const override { return state_.type; }
  Trace* trace() const override { return state_.trace.get(); }
  const char* name() const override { return name_; }
  LaunchCounter* launches() const override { return state_.launches_on(*this); }

  void synchronize() override {
    const OnDevice on(state_.index);
    const cudaError_t error = cudaStreamSynchronize(queue_.stream);
    if (queue_.fault->found) {  // says more than the error of a kernel that ended with __trap()
      const Fault fault = std::exchange(*queue_.fault, {});
      if (fault.site == FaultSite::attention_forward_copies ||
          fault.site == FaultSite::attention_backward_copies)
        throw DeviceError(describe(fault));
      throw ShapeError(describe(fault));
    }
    check(error, name_);
    staged_bytes_ = 0;
    if (LaunchCounter* counter = launches()) counter->add_wait();
  }
  // A copy must not span two registrations of pinned memory: it is cut at their edges.
  void copy(void* to, const void* from, size_t bytes) override {
    state_.count_copy(*this, to, from, bytes);
    const OnDevice on(state_.index);
    const bool stages = bytes > 0 && is_pageable(from);
    auto* destination = static_cast<std::byte*>(to);
    const auto* source = static_cast<const std::byte*>(from);
    while (bytes > 0) {
      size_t part = bytes_in_one_registration(destination, bytes);
      part = bytes_in_one_registration(source, part);
      if (stages) part = std::min(part, staging_bytes);
      queue_copy(destination, stages ? stage(source, part) : source, part);
      destination += part;
      source += part;
      bytes -= part;
    }
  }
  void fill_zero(void* to, size_t bytes) override {
    state_.count_fill(*this, bytes);
    const OnDevice on(state_.index);
    auto* place = static_cast<std::byte*>(to);
    while (bytes > 0) {
      const size_t part = bytes_in_one_registration(place, bytes);
      check(cudaMemsetAsync(place, 0, part, queue_.stream), "fill_zero");
      place += part;
      bytes -= part;
    }
  }

  cudaStream_t stream() const { return queue_.stream; }
  Fault* fault() const { return queue_.fault; }

 private:
  void wait() {
    check(cudaStreamSynchronize(queue_.stream), name_);
    staged_bytes_ = 0;
  }
  void queue_copy(void* to, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue_.stream), "copy");
  }
  /// Copies pageable data to the staging memory, so that the caller may change it. CUDA does not
  /// promise that: where the device reads the host's memory by itself, it may read it late.
  const std::byte* stage(const std::byte* from, size_t bytes) {
    if (staged_bytes_ + bytes > staging_bytes) wait();
    std::byte* const place = queue_.staging + staged_bytes_;
    std::memcpy(place, from, bytes);
    staged_bytes_ += bytes;
    return place;
  }

  DeviceState& state_;  // owns this stream
  const char* const name_;
  const Queue queue_;
  size_t staged_bytes_ = 0;  // since the last wait
};

}  // namespace

std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name) {
  return std::make_unique<CudaStream>(state, name);
}

int streams_on(int index) {
  const std::lock_guard lock(Pool::all().mutex);
  return Pool::all().made[index];
}

cudaStream_t handle(const Stream& stream) {
  return static_cast<const CudaStream&>(stream).stream();
}

Fault* fault_place(const Stream& stream) {
  if (stream.type() == Device::Type::meta) return nullptr;
  return static_cast<const CudaStream&>(stream).fault();
}

}  // namespace zg::cuda

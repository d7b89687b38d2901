#include "zerograd/runtime/cuda/stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/collective_gate.h"
#include "zerograd/runtime/cuda/memory.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

/// Pinned memory of each stream for data from and to pageable memory, in two halves: one is filled
/// while the device still copies from the other. It is not counted as tensor memory.
constexpr size_t staging_bytes = size_t{1} << 20, half_bytes = staging_bytes / 2;

/// The op and its argument that a site checks.
constexpr struct {
  FaultSite site;
  const char *op, *argument;
} checked_arguments[] = {
    {FaultSite::attention_backward_key_lengths, "attention_backward", "key_lengths"},
    {FaultSite::attention_backward_starts, "attention_backward", "starts"},
    {FaultSite::attention_forward_key_lengths, "attention_forward", "key_lengths"},
    {FaultSite::attention_forward_starts, "attention_forward", "starts"},
    {FaultSite::binary_divisor, "div or remainder", "divisor"},
    {FaultSite::cross_entropy_backward_targets, "cross_entropy_backward", "targets"},
    {FaultSite::cross_entropy_forward_targets, "cross_entropy_forward", "targets"},
    {FaultSite::embedding_backward_ids, "embedding_backward", "ids"},
    {FaultSite::embedding_forward_ids, "embedding_forward", "ids"},
    {FaultSite::gather_index, "gather", "index"},
    {FaultSite::projection_cross_entropy_targets, "projection_cross_entropy", "targets"},
    {FaultSite::rope_positions, "rope", "positions"},
    {FaultSite::scatter_add_index, "scatter_add", "index"}};

std::string describe(const Fault& fault) {
  if (fault.site == FaultSite::attention_forward_copies ||
      fault.site == FaultSite::attention_backward_copies)
    return fmt::format(
        "attention_{}: a copy to shared memory never arrived in block {}; the device takes no more "
        "work from this process",
        fault.site == FaultSite::attention_forward_copies ? "forward" : "backward", fault.place);
  const char *op = "a kernel", *argument = "an argument";
  for (const auto& checked : checked_arguments)
    if (checked.site == fault.site) op = checked.op, argument = checked.argument;
  return fmt::format("{}: {}[{}] is {}; expected {}", op, argument, fault.place, fault.value,
                     fault.limit > 0 ? fmt::format("0 to {}", fault.limit - 1) : "no 0");
}

[[noreturn]] void throw_fault(const Fault& fault) {
  if (fault.site == FaultSite::attention_forward_copies ||
      fault.site == FaultSite::attention_backward_copies)
    throw DeviceError(describe(fault));
  throw ShapeError(describe(fault));
}

/// A CUDA stream, its fault record and its staging memory. An event tells when the device has
/// finished with a half of the staging memory.
struct Queue {
  cudaStream_t stream = nullptr;
  Fault* fault = nullptr;
  std::byte* staging = nullptr;
  std::array<cudaEvent_t, 2> half_done = {};
};

/// The streams of all devices. A stream is not destroyed but used again. CUDA assigns the hardware
/// connections to new streams in turn. So if streams were destroyed and created repeatedly, two
/// streams in use could get the same connection.
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
  for (cudaEvent_t& event : queue.half_done)
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
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

class EventMark final : public StreamMark {
 public:
  EventMark(int index, cudaStream_t stream, const Fault& fault) : index_(index), fault_(fault) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  ~EventMark() override {
    try {
      const OnDevice on(index_);  // else the call may create a context on device 0
      cudaEventDestroy(event_);
    } catch (const DeviceError&) {  // the process ends with the failed device
    }
  }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  void wait() override {
    const OnDevice on(index_);
    const cudaError_t error = cudaEventSynchronize(event_);
    if (fault_.found) throw_fault(fault_);
    check(error, "cudaEventSynchronize");
  }
  void make_wait(Stream& stream) override {
    const OnDevice on(stream.device().index());
    check(cudaStreamWaitEvent(handle(stream), event_, 0), "cudaStreamWaitEvent");
  }

 private:
  const int index_;
  const Fault& fault_;  // of the stream
  cudaEvent_t event_ = nullptr;
};

/// Streams of a device do not wait for each other implicitly.
class CudaStream final : public DeviceStream {
 public:
  CudaStream(DeviceState& state, const char* name)
      : DeviceStream(state, name), queue_(take_queue(state.index)) {}
  ~CudaStream() override {
    try {
      const OnDevice on(state_.index);
      cudaStreamSynchronize(queue_.stream);
    } catch (const DeviceError&) {  // a kernel failed before: all CUDA calls of the process fail
    }
    *queue_.fault = {};
    const std::lock_guard lock(Pool::all().mutex);
    Pool::all().idle[state_.index].push_back(queue_);
  }

  LaunchCounter* launches() const override { return state_.launches_on(*this); }

  void synchronize() override {
    // If this function throws, the values must not be delivered. So they are removed first.
    const std::vector<Fetched> fetched = std::exchange(fetched_, {});
    if (awaits_collectives()) state_.unconfirmed.confirm();
    const OnDevice on(state_.index);
    const cudaError_t error = cudaStreamSynchronize(queue_.stream);
    staged_bytes_ = 0;
    is_busy_ = {};
    if (queue_.fault->found)  // more precise than the error of a kernel that ended with __trap()
      throw_fault(std::exchange(*queue_.fault, {}));
    check(error, name_);
    for (const Fetched& one : fetched) one.deliver();
    if (LaunchCounter* counter = launches()) counter->add_wait();
  }
  // A copy must not span two registrations of pinned memory, so it is split at their boundaries.
  void copy(void* to, const void* from, size_t bytes) override {
    state_.count_copy(*this, to, from, bytes);
    const OnDevice on(state_.index);
    const bool stages = bytes > 0 && is_pageable(from);
    if (awaits_collectives() && is_pageable(to))  // the driver may make the host wait
      state_.unconfirmed.confirm();
    auto* destination = static_cast<std::byte*>(to);
    const auto* source = static_cast<const std::byte*>(from);
    while (bytes > 0) {
      size_t part = bytes_in_one_registration(destination, bytes);
      part = bytes_in_one_registration(source, part);
      if (stages) part = std::min(part, half_bytes);
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

  /// Queues a copy of at most half_bytes to the staging memory; synchronize() fills the result.
  std::shared_ptr<const std::vector<std::byte>> fetch(const void* from, size_t bytes) {
    // Until they arrive the bytes are those of a NaN.
    Fetched next{.to = std::make_shared<std::vector<std::byte>>(bytes, std::byte{0xff})};
    state_.count_copy(*this, next.to->data(), from, bytes);
    const OnDevice on(state_.index);
    next.staged = staging_place(bytes);
    next.half = half_;
    queue_copy(next.staged, from, bytes);
    fetched_.push_back(next);
    return next.to;
  }

  cudaStream_t stream() const { return queue_.stream; }
  Fault* fault() const { return queue_.fault; }

 private:
  /// Bytes that the device copies to the staging memory. `to` is shared with the PendingItem, which
  /// may be destroyed before the bytes have arrived.
  struct Fetched {
    std::shared_ptr<std::vector<std::byte>> to;
    std::byte* staged = nullptr;
    size_t half = 0;
    void deliver() const { std::memcpy(to->data(), staged, to->size()); }
  };

  /// The next `bytes` of the staging memory, which fit in a half. Before a half is filled again, it
  /// waits until the device has finished with that half.
  std::byte* staging_place(size_t bytes) {
    constexpr size_t alignment = 16;
    if (staged_bytes_ + bytes > half_bytes) {
      if (is_busy_[1 - half_] && awaits_collectives()) state_.unconfirmed.confirm();
      check(cudaEventRecord(queue_.half_done[half_], queue_.stream), "cudaEventRecord");
      is_busy_[half_] = true;
      half_ = 1 - half_;
      if (std::exchange(is_busy_[half_], false))
        check(cudaEventSynchronize(queue_.half_done[half_]), name_);
      for (const Fetched& one : fetched_)
        if (one.half == half_) one.deliver();
      std::erase_if(fetched_, [&](const Fetched& one) { return one.half == half_; });
      staged_bytes_ = 0;
    }
    std::byte* const place = queue_.staging + half_ * half_bytes + staged_bytes_;
    staged_bytes_ += (bytes + alignment - 1) / alignment * alignment;
    return place;
  }
  /// Whether this is the compute queue and has queued waits for collectives. Before the host waits
  /// for such a queue, it waits for the collectives themselves, so that their errors are thrown.
  bool awaits_collectives() const {
    return state_.compute.get() == this && !state_.unconfirmed.empty();
  }
  void queue_copy(void* to, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue_.stream), "copy");
  }
  /// Copies pageable data to the staging memory, so that the caller may change it. CUDA does not
  /// guarantee that: a device that accesses host memory directly may read it later.
  const std::byte* stage(const std::byte* from, size_t bytes) {
    std::byte* const place = staging_place(bytes);
    std::memcpy(place, from, bytes);
    return place;
  }

  const Queue queue_;
  size_t half_ = 0, staged_bytes_ = 0;  // the half that is being filled, and its bytes in use
  std::array<bool, 2> is_busy_ = {};    // an event was recorded for the half
  std::vector<Fetched> fetched_;        // since the last wait
};

}  // namespace

std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name) {
  return std::make_unique<CudaStream>(state, name);
}

std::shared_ptr<const std::vector<std::byte>> fetch(Stream& stream, const void* from,
                                                    size_t bytes) {
  return static_cast<CudaStream&>(stream).fetch(from, bytes);
}

std::unique_ptr<StreamMark> mark(Stream& stream) {
  const int index = stream.device().index();
  const OnDevice on(index);
  return std::make_unique<EventMark>(index, handle(stream), *fault_place(stream));
}

bool is_idle(Stream& stream) {
  const OnDevice on(stream.device().index());
  return cudaStreamQuery(handle(stream)) != cudaErrorNotReady;
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

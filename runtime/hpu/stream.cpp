#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/hpu/device.h"
#include "zerograd/runtime/hpu/module.h"
#include "zerograd/runtime/hpu/queue.h"
#include "zerograd/runtime/pending.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
namespace {

[[noreturn]] void throw_fault(const Fault& fault) {
  const auto text = [](int64_t address) {
    return reinterpret_cast<const char*>(address);  // NOLINT: the kernel got it as a number
  };
  raise<ShapeError>("{}: {}[{}] is {}; expected {}", text(fault.op), text(fault.name), fault.place,
                    fault.value,
                    fault.limit >= 0 ? fmt::format("0 to {}", fault.limit - 1) : "no 0");
}

/// A stream: a Queue, staging memory for copies of ordinary host memory, and the stream's kernel
/// handles.
class HpuStream final : public DeviceStream {
 public:
  HpuStream(DeviceState& state, const char* name)
      : DeviceStream(state, name),
        queue_(handle_of(state.index),
               std::string_view(name) == "offload" ? Queue::Engine::copy : Queue::Engine::compute),
        staging_(queue_) {}
  ~HpuStream() override {
    // The device must have finished before anything is destroyed. An error was reported earlier.
    try {
      queue_.wait();
    } catch (...) {
    }
    for (const auto& [key, kernel] : kernels_) api().kernelDestroy(kernel.handle);
    if (fault_) api().memFree(driver().context, fault_);
  }

  void synchronize() override {
    // If this throws, the values must not be delivered. So they are removed first.
    const std::vector<Fetched> fetched = std::exchange(fetched_, {});
    fetch_fault();
    queue_.wait();
    if (times_) times_->record(trace(), state_.trace_rank, name_);
    const std::shared_ptr<SharedEvent> last = std::exchange(fetched_fault_, nullptr);
    if (last && last->fault->found) {
      const Fault fault = *last->fault;
      clear_fault();
      throw_fault(fault);
    }
    for (const Fetched& one : fetched)
      std::memcpy(one.to->data(), one.staged->fault, one.to->size());
  }

  /// Queues a copy; synchronize() fills the result.
  std::shared_ptr<const std::vector<std::byte>> fetch(const void* from, size_t bytes) {
    // Until they arrive the bytes are those of a NaN.
    auto to = std::make_shared<std::vector<std::byte>>(bytes, std::byte{0xff});
    if (bytes > sizeof(Fault)) {
      copy(to->data(), from, bytes);
      return to;
    }
    fetched_.push_back({to, take_event(queue_.device())});
    queue_.copy(fetched_.back().staged->fault, from, bytes);
    return to;
  }

  /// The event at the end of the queued work, with the fault record as it is then.
  std::shared_ptr<SharedEvent> mark() {
    std::shared_ptr<SharedEvent> end = take_event(queue_.device());
    if (may_fault_ || fetched_fault_) queue_.copy(end->fault, fault_, sizeof(Fault));
    return queue_.signal(std::move(end));
  }
  void await(const std::shared_ptr<SharedEvent>& event) { queue_.await(event); }
  bool is_idle() {
    if (queue_.is_waited_for()) return true;
    if (!end_ || end_->signalled_at != queue_.appended()) end_ = queue_.signal();
    return api().eventQueryStatus(end_->handle) != ZE_RESULT_NOT_READY;
  }

  // If `to` is memory that no device can access, this returns only after the copy is done.
  void copy(void* to, const void* from, size_t bytes) override {
    const int to_memory = memory_of(to), from_memory = memory_of(from);
    if (to_memory == process_memory && from_memory == process_memory) {
      queue_.wait();
      std::memmove(to, from, bytes);
    } else if (from_memory == process_memory) {
      staging_.to_device(to, from, bytes);
    } else if (is_out_of_reach(from_memory) || is_out_of_reach(to_memory)) {
      copy_through_host(to, to_memory, from, from_memory, bytes);
    } else if (to_memory == process_memory) {
      fetch_fault();  // so that synchronize() need not wait for it again
      staging_.to_host(to, from, bytes);
    } else {
      queue_.copy(to, from, bytes);
    }
  }
  void fill_zero(void* to, size_t bytes) override {
    if (memory_of(to) != process_memory) return queue_.fill_zero(to, bytes);
    queue_.wait();
    std::memset(to, 0, bytes);
  }

  void* fault_place() {
    if (!fault_) {
      const ze_device_mem_alloc_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC};
      check(api().memAllocDevice(driver().context, &wanted, sizeof(Fault), alignof(Fault),
                                 handle_of(state_.index), &fault_),
            "zeMemAllocDevice");
      clear_fault();
    }
    may_fault_ = true;
    return fault_;
  }

  void enqueue(const Code& code, const char* name, const Groups& groups,
               std::span<const Argument> arguments) {
    const Kernel& kernel = this->kernel(code, name);  // also loaded by a call without elements
    const auto counts = {groups.x, groups.y, groups.z};
    if (std::any_of(counts.begin(), counts.end(), [](int64_t n) { return n == 0; })) return;
    for (const int64_t count : counts)
      if (count < 0 || count > UINT32_MAX)
        raise<ShapeError>("{}: {}: {} work-groups; expected at most {}", code.name, name, count,
                          UINT32_MAX);
    if (arguments.size() != kernel.arguments)
      raise<DeviceError>("hpu: {}: {} takes {} arguments, got {}", code.name, name,
                         kernel.arguments, arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i)
      check(api().kernelSetArgumentValue(kernel.handle, static_cast<uint32_t>(i),
                                         arguments[i].bytes, arguments[i].value),
            name);
    if (trace() && !times_) times_.emplace(queue_.device());
    queue_.launch(kernel.handle,
                  {static_cast<uint32_t>(groups.x), static_cast<uint32_t>(groups.y),
                   static_cast<uint32_t>(groups.z)},
                  name, trace() ? times_->next(name) : nullptr);
  }

 private:
  struct Kernel {
    ze_kernel_handle_t handle;
    uint32_t arguments;
  };

  // A kernel handle keeps the arguments until the launch, and only one thread may use it. So each
  // stream has its own handles.
  const Kernel& kernel(const Code& code, const char* name) {
    const auto key = std::pair<const unsigned char*, std::string>(code.spirv.data(), name);
    const auto known = kernels_.find(key);
    if (known != kernels_.end()) return known->second;
    const ze_kernel_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_KERNEL_DESC, .pKernelName = name};
    const std::string what = std::string(code.name) + ": " + name;
    ze_kernel_handle_t handle = nullptr;
    check(api().kernelCreate(module_of(state_.index, code), &wanted, &handle), what.c_str());
    ze_kernel_properties_t properties = {.stype = ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES};
    check(api().kernelGetProperties(handle, &properties), what.c_str());
    check(api().kernelSetGroupSize(handle, properties.requiredGroupSizeX,
                                   properties.requiredGroupSizeY, properties.requiredGroupSizeZ),
          what.c_str());
    return kernels_.emplace(key, Kernel{handle, properties.numKernelArgs}).first->second;
  }

  /// True for memory of another device that this device cannot access.
  bool is_out_of_reach(int memory) const { return memory >= 0 && !reaches(state_.index, memory); }

  /// Copies through the host, up to 4 MiB at a time. The other device has finished its earlier
  /// work.
  void copy_through_host(void* to, int to_memory, const void* from, int from_memory, size_t bytes) {
    constexpr size_t max_chunk = size_t{4} << 20;
    std::vector<std::byte> chunk(std::min(bytes, max_chunk));
    for (size_t done = 0; done < bytes; done += chunk.size()) {
      const size_t count = std::min(chunk.size(), bytes - done);
      staging_of(from_memory)
          .to_host(chunk.data(), static_cast<const std::byte*>(from) + done, count);
      std::byte* const place = static_cast<std::byte*>(to) + done;
      if (to_memory == process_memory)
        std::memcpy(place, chunk.data(), count);
      else
        staging_of(to_memory).to_device(place, chunk.data(), count);
    }
    if (is_out_of_reach(to_memory)) peers_.at(to_memory).queue.wait();
  }

  Staging& staging_of(int place) {
    if (!is_out_of_reach(place)) return staging_;
    return peers_.try_emplace(place, place).first->second.staging;
  }

  /// A queue and staging memory of another device.
  struct PeerQueue {
    Queue queue;
    Staging staging;
    explicit PeerQueue(int index) : queue(handle_of(index)), staging(queue) {}
  };

  /// `to` is shared with the PendingItem, which may be destroyed before the bytes have arrived.
  struct Fetched {
    std::shared_ptr<std::vector<std::byte>> to;
    std::shared_ptr<SharedEvent> staged;  // only its memory is used
  };

  /// Queues the copy of the fault record that synchronize() reads.
  void fetch_fault() {
    if (!std::exchange(may_fault_, false)) return;
    fetched_fault_ = take_event(queue_.device());
    queue_.copy(fetched_fault_->fault, fault_, sizeof(Fault));
  }

  void clear_fault() {
    const Fault none{};
    staging_.to_device(fault_, &none, sizeof none);
  }

  std::optional<KernelTimes>
      times_;  // destroyed after the queue: launches in the queue signal its events
  Queue queue_;
  Staging staging_;
  std::map<int, PeerQueue> peers_;
  void* fault_ = nullptr;
  bool may_fault_ = false;
  std::vector<Fetched> fetched_;  // since the last wait
  std::shared_ptr<SharedEvent> fetched_fault_;
  std::shared_ptr<SharedEvent> end_;  // that is_idle() asks
  std::map<std::pair<const unsigned char*, std::string>, Kernel> kernels_;
};

/// A point in the work of a stream. It may outlive the stream.
class EventMark final : public StreamMark {
 public:
  explicit EventMark(std::shared_ptr<SharedEvent> event) : event_(std::move(event)) {}
  void wait() override {
    check(api().eventHostSynchronize(event_->handle, UINT64_MAX), "synchronize");
    if (event_->fault->found) throw_fault(*event_->fault);
  }
  void make_wait(Stream& stream) override { static_cast<HpuStream&>(stream).await(event_); }

 private:
  const std::shared_ptr<SharedEvent> event_;
};

}  // namespace

std::shared_ptr<const std::vector<std::byte>> fetch(Stream& stream, const void* from,
                                                    size_t bytes) {
  return static_cast<HpuStream&>(stream).fetch(from, bytes);
}

std::unique_ptr<StreamMark> mark(Stream& stream) {
  return std::make_unique<EventMark>(static_cast<HpuStream&>(stream).mark());
}

bool is_idle(Stream& stream) { return static_cast<HpuStream&>(stream).is_idle(); }

std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name) {
  return std::make_unique<HpuStream>(state, name);
}

void enqueue(Stream& stream, const Code& code, const char* kernel, const Groups& groups,
             std::span<const Argument> arguments) {
  if (code.missing)
    raise<Unsupported>(
        "{}: its OpenCL source was not compiled: missing {}; install these and configure the "
        "program again",
        kernel, code.missing);
  static_cast<HpuStream&>(stream).enqueue(code, kernel, groups, arguments);
}

void* fault_place(Stream& stream) {
  if (stream.type() == Device::Type::meta) return nullptr;
  return static_cast<HpuStream&>(stream).fault_place();
}

}  // namespace zg::hpu

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
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
namespace {

/// The fault record that kernels write (kernels/hpu/tile.clh). op and name are addresses of string
/// literals of the host; a kernel only copies them.
struct Fault {
  int64_t found, op, name, value, place, limit;
};

/// A stream: a Queue, staging memory for copies of ordinary host memory, and the stream's kernel
/// handles.
class HpuStream final : public DeviceStream {
 public:
  HpuStream(DeviceState& state, const char* name)
      : DeviceStream(state, name), queue_(handle_of(state.index)), staging_(queue_) {}
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
    queue_.wait();
    if (times_) times_->record(trace(), state_.trace_rank, name_);
    if (!std::exchange(may_fault_, false)) return;
    Fault fault;
    staging_.to_host(&fault, fault_, sizeof fault);
    if (!fault.found) return;
    clear_fault();
    const auto text = [](int64_t address) {
      return reinterpret_cast<const char*>(address);  // NOLINT: the kernel got it as a number
    };
    raise<ShapeError>("{}: {}[{}] is {}; expected {}", text(fault.op), text(fault.name),
                      fault.place, fault.value,
                      fault.limit >= 0 ? fmt::format("0 to {}", fault.limit - 1) : "no 0");
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
  std::map<std::pair<const unsigned char*, std::string>, Kernel> kernels_;
};

}  // namespace

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

void* fault_place(Stream& stream) { return static_cast<HpuStream&>(stream).fault_place(); }

}  // namespace zg::hpu

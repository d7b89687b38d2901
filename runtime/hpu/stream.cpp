#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/hpu/device.h"
#include "zerograd/runtime/hpu/queue.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
namespace {

/// Written by kernels (kernels/hpu/tile.clh). `op` and `name` are addresses of string literals of
/// the host.
struct Fault {
  int64_t found, op, name, value, place, limit;
};

/// An immediate command list. Level Zero gives its commands no order, so each is followed by a
/// barrier.
class HpuStream final : public Stream {
 public:
  HpuStream(DeviceState& state, const char* name)
      : state_(state), name_(name), queue_(handle_of(state.index)), staging_(queue_) {}
  ~HpuStream() override {
    // The device must have finished before anything is destroyed. An error was reported earlier.
    try {
      queue_.wait();
    } catch (...) {
    }
    for (const auto& [place, kernel] : kernels_) api().kernelDestroy(kernel.handle);
    if (fault_) api().memFree(driver().context, fault_);
  }

  Device device() const override { return state_.handle(); }
  const Device::Traits& traits() const override { return state_.traits; }
  Device::Type type() const override { return state_.type; }
  Trace* trace() const override { return state_.trace.get(); }
  const char* name() const override { return name_; }

  void synchronize() override {
    queue_.wait();
    if (times_) times_->tell(trace(), state_.trace_rank, name_);
    if (!std::exchange(may_fault_, false)) return;
    Fault fault;
    staging_.to_host(&fault, fault_, sizeof fault);
    if (!fault.found) return;
    clear_fault();
    const auto text = [](int64_t address) { return reinterpret_cast<const char*>(address); };
    throw ShapeError(fmt::format(
        "{}: {}[{}] is {}; expected {}", text(fault.op), text(fault.name), fault.place, fault.value,
        fault.limit >= 0 ? fmt::format("0 to {}", fault.limit - 1) : "no 0"));
  }

  // Returns after the copy is done when `to` is memory that no device reaches.
  void copy(void* to, const void* from, size_t bytes) override {
    const int out = place_of(to), in = place_of(from);
    if (out == process_memory && in == process_memory) {
      queue_.wait();
      std::memmove(to, from, bytes);
    } else if (in == process_memory) {
      staging_.to_device(to, from, bytes);
    } else if (is_far(in) || is_far(out)) {
      copy_far(to, out, from, in, bytes);
    } else if (out == process_memory) {
      staging_.to_host(to, from, bytes);
    } else {
      queue_.copy(to, from, bytes);
    }
  }
  void fill_zero(void* to, size_t bytes) override {
    if (place_of(to) != process_memory) return queue_.fill_zero(to, bytes);
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
    const auto counts = {groups.x, groups.y, groups.z};
    if (std::any_of(counts.begin(), counts.end(), [](int64_t n) { return n == 0; })) return;
    for (const int64_t count : counts)
      if (count < 0 || count > UINT32_MAX)
        throw ShapeError(fmt::format("{}: {}: {} work-groups; expected at most {}", code.name, name,
                                     count, UINT32_MAX));
    const Kernel& kernel = this->kernel(code, name);
    if (arguments.size() != kernel.arguments)
      throw DeviceError(fmt::format("hpu: {}: {} takes {} arguments, got {}", code.name, name,
                                    kernel.arguments, arguments.size()));
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

  // Handles hold arguments until a launch and belong to one thread: each stream has its own.
  const Kernel& kernel(const Code& code, const char* name) {
    const auto place = std::pair<const unsigned char*, std::string>(code.spirv.data(), name);
    const auto known = kernels_.find(place);
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
    // A pinned tensor may span several registered ranges; a launch names only the first one.
    check(api().kernelSetIndirectAccess(handle, ZE_KERNEL_INDIRECT_ACCESS_FLAG_HOST), what.c_str());
    return kernels_.emplace(place, Kernel{handle, properties.numKernelArgs}).first->second;
  }

  /// True for memory of another device that this one cannot reach.
  bool is_far(int place) const { return place >= 0 && !reaches(state_.index, place); }

  /// Copies through the host, a chunk at a time. The other device has finished its earlier work.
  void copy_far(void* to, int out, const void* from, int in, size_t bytes) {
    constexpr size_t longest = size_t{4} << 20;
    std::vector<std::byte> part(std::min(bytes, longest));
    for (size_t done = 0; done < bytes; done += part.size()) {
      const size_t count = std::min(part.size(), bytes - done);
      staging_at(in).to_host(part.data(), static_cast<const std::byte*>(from) + done, count);
      std::byte* const place = static_cast<std::byte*>(to) + done;
      if (out == process_memory)
        std::memcpy(place, part.data(), count);
      else
        staging_at(out).to_device(place, part.data(), count);
    }
    if (is_far(out)) far_.at(out).queue.wait();
  }

  Staging& staging_at(int place) {
    if (!is_far(place)) return staging_;
    return far_.try_emplace(place, place).first->second.staging;
  }

  /// Queue and staging buffer of another device.
  struct Far {
    Queue queue;
    Staging staging;
    explicit Far(int index) : queue(handle_of(index)), staging(queue) {}
  };

  void clear_fault() {
    const Fault none{};
    staging_.to_device(fault_, &none, sizeof none);
  }

  DeviceState& state_;  // owns this stream
  const char* const name_;
  std::optional<KernelTimes> times_;  // outlives the queue, whose commands signal its events
  Queue queue_;
  Staging staging_;
  std::map<int, Far> far_;
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
  static_cast<HpuStream&>(stream).enqueue(code, kernel, groups, arguments);
}

void* fault_place(Stream& stream) { return static_cast<HpuStream&>(stream).fault_place(); }

}  // namespace zg::hpu

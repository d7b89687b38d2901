#include "zerograd/runtime/hpu/queue.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/hpu/device.h"

namespace zg::hpu {
namespace {

/// The ordinal of the first queue group that can compute, which every device has, or of the first
/// that can only copy.
uint32_t ordinal_of(ze_device_handle_t device, Queue::Engine engine) {
  uint32_t count = 0;
  check(api().deviceGetCommandQueueGroupProperties(device, &count, nullptr), "queue groups");
  std::vector<ze_command_queue_group_properties_t> groups(
      count, {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES});
  check(api().deviceGetCommandQueueGroupProperties(device, &count, groups.data()), "queue groups");
  const auto find = [&](bool computes) {
    return std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return ((group.flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE) != 0) == computes &&
             (computes || (group.flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY));
    });
  };
  auto group = find(engine == Queue::Engine::compute);
  if (group == groups.end()) group = find(true);
  if (group == groups.end()) throw DeviceError("hpu: the device has no queue that computes");
  return static_cast<uint32_t>(group - groups.begin());
}

constexpr uint32_t events_of_a_pool = 64;

ze_event_pool_handle_t make_event_pool(ze_device_handle_t device, ze_event_pool_flags_t flags,
                                       uint32_t count) {
  const ze_event_pool_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC,
                                       .flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE | flags,
                                       .count = count};
  ze_event_pool_handle_t pool = nullptr;
  check(api().eventPoolCreate(driver().context, &wanted, 1, &device, &pool), "zeEventPoolCreate");
  return pool;
}

ze_event_handle_t make_event(ze_event_pool_handle_t pool, uint32_t index) {
  const ze_event_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_EVENT_DESC,
                                  .index = index,
                                  .signal = ZE_EVENT_SCOPE_FLAG_HOST,
                                  .wait = ZE_EVENT_SCOPE_FLAG_HOST};
  ze_event_handle_t event = nullptr;
  check(api().eventCreate(pool, &wanted, &event), "zeEventCreate");
  return event;
}

}  // namespace

// --- SharedEvent ---

namespace {

/// The events of a device that are not in use.
class FreeEvents {
 public:
  static FreeEvents& of(ze_device_handle_t device) {
    static std::mutex mutex;
    static auto& all = *new std::map<ze_device_handle_t, FreeEvents>;  // as long as the driver
    const std::lock_guard lock(mutex);
    return all.try_emplace(device, device).first->second;
  }
  explicit FreeEvents(ze_device_handle_t device) : device_(device) {}

  SharedEvent take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) add_pool();
    const SharedEvent event = free_.back();
    free_.pop_back();
    event.fault->found = 0;
    return event;
  }
  void give_back(const SharedEvent& event) {
    if (api().eventHostReset(event.handle) != ZE_RESULT_SUCCESS) return;  // the device is lost
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  void add_pool() {
    const ze_host_mem_alloc_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC};
    void* memory = nullptr;
    check(api().memAllocHost(driver().context, &wanted, events_of_a_pool * sizeof(Fault), 64,
                             &memory),
          "zeMemAllocHost");
    const ze_event_pool_handle_t pool = make_event_pool(device_, 0, events_of_a_pool);
    for (uint32_t i = 0; i < events_of_a_pool; ++i)
      free_.push_back({make_event(pool, i), static_cast<Fault*>(memory) + i});
  }

  const ze_device_handle_t device_;
  std::mutex mutex_;
  std::vector<SharedEvent> free_;
};

}  // namespace

std::shared_ptr<SharedEvent> take_event(ze_device_handle_t device) {
  FreeEvents& events = FreeEvents::of(device);
  return {new SharedEvent(events.take()), [&events](SharedEvent* event) {
            events.give_back(*event);
            delete event;
          }};
}

// --- Queue ---

Queue::Queue(ze_device_handle_t device, Engine engine) : device_(device) {
  ze_command_queue_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                                    .ordinal = ordinal_of(device, engine),
                                    .flags = 2,  // ZE_COMMAND_QUEUE_FLAG_IN_ORDER
                                    .mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS};
  const auto create = [&] {
    return api().commandListCreateImmediate(driver().context, device_, &wanted, &list_);
  };
  is_ordered_ = create() == ZE_RESULT_SUCCESS;
  wanted.flags = 0;
  if (!is_ordered_) check(create(), "zeCommandListCreateImmediate");
}

Queue::~Queue() {
  // Wait, because the device must not use destroyed objects.
  try {
    wait();
  } catch (...) {  // reported earlier
  }
  api().commandListDestroy(list_);
}

void Queue::append_barrier(ze_event_handle_t signals, ze_event_handle_t waits_for) {
  check(api().commandListAppendBarrier(list_, signals, waits_for ? 1 : 0,
                                       waits_for ? &waits_for : nullptr),
        "barrier");
}

void Queue::end_command() {
  if (!is_ordered_) append_barrier(nullptr, nullptr);
  ++appended_;
}

void Queue::copy(void* to, const void* from, size_t bytes) {
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  for (size_t done = 0, part; done < bytes; done += part) {
    part = std::min(
        {bytes - done, position_of(target + done).bytes, position_of(source + done).bytes});
    check(api().commandListAppendMemoryCopy(list_, target + done, source + done, part, nullptr, 0,
                                            nullptr),
          "copy");
  }
  end_command();
}

void Queue::fill_zero(void* to, size_t bytes) {
  const uint8_t zero = 0;
  auto* const target = static_cast<std::byte*>(to);
  for (size_t done = 0, part; done < bytes; done += part) {
    part = std::min(bytes - done, position_of(target + done).bytes);
    check(api().commandListAppendMemoryFill(list_, target + done, &zero, sizeof zero, part, nullptr,
                                            0, nullptr),
          "fill_zero");
  }
  end_command();
}

void Queue::launch(ze_kernel_handle_t kernel, ze_group_count_t groups, const char* name,
                   ze_event_handle_t done) {
  check(api().commandListAppendLaunchKernel(list_, kernel, &groups, done, 0, nullptr), name);
  end_command();
}

const std::shared_ptr<SharedEvent>& Queue::signal(std::shared_ptr<SharedEvent> event) {
  append_barrier(event->handle, nullptr);
  event->signalled_at = ++appended_;
  return events_in_use_.emplace_back(std::move(event));
}

void Queue::await(std::shared_ptr<SharedEvent> event) {
  append_barrier(nullptr, event->handle);
  ++appended_;
  events_in_use_.push_back(std::move(event));
}

void Queue::wait_for(const SharedEvent& event) {
  check(api().eventHostSynchronize(event.handle, UINT64_MAX), "synchronize");
  waited_for_ = std::max(waited_for_, event.signalled_at);
  if (is_waited_for()) events_in_use_.clear();
}

void Queue::wait() {
  if (!is_waited_for()) wait_for(*signal());
}

// --- Staging ---

Staging::~Staging() {
  if (!memory_) return;
  try {
    queue_.wait();
  } catch (...) {  // reported earlier
  }
  api().memFree(driver().context, memory_);
}

std::byte* Staging::half(int i) {
  if (!memory_) {
    const ze_host_mem_alloc_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC};
    void* memory = nullptr;
    check(api().memAllocHost(driver().context, &wanted, 2 * half_bytes, 64, &memory),
          "zeMemAllocHost");
    memory_ = static_cast<std::byte*>(memory);
  }
  return memory_ + static_cast<size_t>(i) * half_bytes;
}

std::byte* Staging::next(size_t bytes) {
  constexpr size_t alignment = 64;
  if (queue_.is_waited_for()) used_ = 0;
  if (used_ + bytes > half_bytes) {
    done_[current_] = queue_.signal();
    current_ = 1 - current_;
    if (const auto done = std::exchange(done_[current_], nullptr)) queue_.wait_for(*done);
    used_ = 0;
  }
  std::byte* const place = half(current_) + used_;
  used_ += (bytes + alignment - 1) / alignment * alignment;
  return place;
}

void Staging::to_device(void* to, const void* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t chunk_bytes = std::min(half_bytes, bytes - done);
    std::byte* const buffer = next(chunk_bytes);
    std::memcpy(buffer, static_cast<const std::byte*>(from) + done, chunk_bytes);
    queue_.copy(static_cast<std::byte*>(to) + done, buffer, chunk_bytes);
    done += chunk_bytes;
  }
}

void Staging::to_host(void* to, const void* from, size_t bytes) {
  if (bytes <= half_bytes) {
    std::byte* const buffer = next(bytes);
    queue_.copy(buffer, from, bytes);
    queue_.wait();
    std::memcpy(to, buffer, bytes);
    return;
  }
  queue_.wait();
  // While the host copies out of one half, the device fills the other.
  size_t requested = 0;
  const auto request_chunk = [&](int i) {
    const size_t chunk_bytes = std::min(half_bytes, bytes - requested);
    if (chunk_bytes == 0) return chunk_bytes;
    queue_.copy(half(i), static_cast<const std::byte*>(from) + requested, chunk_bytes);
    done_[i] = queue_.signal();
    requested += chunk_bytes;
    return chunk_bytes;
  };
  int current = 0;
  size_t chunk_bytes = request_chunk(current);
  for (size_t done = 0; done < bytes; current = 1 - current) {
    const size_t following = request_chunk(1 - current);
    queue_.wait_for(*std::exchange(done_[current], nullptr));
    std::memcpy(static_cast<std::byte*>(to) + done, half(current), chunk_bytes);
    done += chunk_bytes;
    chunk_bytes = following;
  }
}

// --- KernelTimes ---

KernelTimes::KernelTimes(ze_device_handle_t device) : device_(device) {
  // In this version of the structure timerResolution is in ticks per second; in the first version
  // it is in whole nanoseconds.
  ze_device_properties_t properties = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2};
  check(api().deviceGetProperties(device_, &properties), "zeDeviceGetProperties");
  nanoseconds_of_a_tick_ = 1e9 / static_cast<double>(properties.timerResolution);
  const uint32_t bits = properties.kernelTimestampValidBits;
  mask_ = bits < 64 ? (uint64_t{1} << bits) - 1 : ~uint64_t{0};
}

KernelTimes::~KernelTimes() {
  for (ze_event_handle_t event : events_) api().eventDestroy(event);
  for (ze_event_pool_handle_t pool : pools_) api().eventPoolDestroy(pool);
}

ze_event_handle_t KernelTimes::next(const char* kernel) {
  if (kernels_.size() == events_.size()) add_pool();
  kernels_.emplace_back(kernel);
  return events_[kernels_.size() - 1];
}

void KernelTimes::record(Trace* trace, int rank, const std::string& stream) {
  std::vector<ze_kernel_timestamp_data_t> times;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    ze_kernel_timestamp_result_t time = {};
    check(api().eventQueryKernelTimestamp(events_[i], &time), "zeEventQueryKernelTimestamp");
    check(api().eventHostReset(events_[i]), "zeEventHostReset");
    times.push_back(time.global);
  }
  const int64_t now_ns = trace ? trace->now_ns() : 0;
  for (size_t i = 0; trace && i < times.size(); ++i) {
    const double until_now = nanoseconds(times[i].kernelEnd, times.back().kernelEnd);
    const double duration = nanoseconds(times[i].kernelStart, times[i].kernelEnd);
    const int64_t end_ns = now_ns - static_cast<int64_t>(until_now);
    trace->span({.rank = rank,
                 .track = stream == "compute" ? "kernels" : "kernels, " + stream,
                 .kind = Trace::Kind::kernel,
                 .name = kernels_[i],
                 .begin_ns = end_ns - static_cast<int64_t>(duration),
                 .end_ns = end_ns});
  }
  kernels_.clear();
}

double KernelTimes::nanoseconds(uint64_t from, uint64_t to) const {
  return static_cast<double>((to - from) & mask_) * nanoseconds_of_a_tick_;
}

void KernelTimes::add_pool() {
  pools_.push_back(make_event_pool(device_, ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP, events_of_a_pool));
  for (uint32_t i = 0; i < events_of_a_pool; ++i) events_.push_back(make_event(pools_.back(), i));
}

}  // namespace zg::hpu

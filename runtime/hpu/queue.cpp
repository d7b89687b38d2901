#include "zerograd/runtime/hpu/queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/hpu/device.h"

namespace zg::hpu {
namespace {

/// The ordinal of the first queue group that can compute; every device has one.
uint32_t compute_ordinal(ze_device_handle_t device) {
  uint32_t count = 0;
  check(api().deviceGetCommandQueueGroupProperties(device, &count, nullptr), "queue groups");
  std::vector<ze_command_queue_group_properties_t> groups(
      count, {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES});
  check(api().deviceGetCommandQueueGroupProperties(device, &count, groups.data()), "queue groups");
  for (uint32_t i = 0; i < count; ++i)
    if (groups[i].flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE) return i;
  throw DeviceError("hpu: the device has no queue that computes");
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

// --- Queue ---

Queue::Queue(ze_device_handle_t device) : device_(device) {
  const ze_command_queue_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                                          .ordinal = compute_ordinal(device),
                                          .mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS};
  check(api().commandListCreateImmediate(driver().context, device_, &wanted, &list_),
        "zeCommandListCreateImmediate");
  pool_ = make_event_pool(device_, 0, points + 1);
  for (uint32_t i = 0; i <= points; ++i) events_[i] = make_event(pool_, i);
}

Queue::~Queue() {
  // Wait, because the device must not use destroyed objects. Errors are ignored: they were reported
  // earlier.
  if (api().commandListAppendBarrier(list_, event(points), 0, nullptr) == ZE_RESULT_SUCCESS)
    api().eventHostSynchronize(event(points), UINT64_MAX);
  for (ze_event_handle_t each : events_) api().eventDestroy(each);
  api().eventPoolDestroy(pool_);
  api().commandListDestroy(list_);
}

void Queue::barrier(ze_event_handle_t event) {
  check(api().commandListAppendBarrier(list_, event, 0, nullptr), "barrier");
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
  barrier();
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
  barrier();
}

void Queue::launch(ze_kernel_handle_t kernel, ze_group_count_t groups, const char* name,
                   ze_event_handle_t done) {
  check(api().commandListAppendLaunchKernel(list_, kernel, &groups, done, 0, nullptr), name);
  barrier();
}

void Queue::wait() {
  barrier(event(points));
  check(api().eventHostSynchronize(event(points), UINT64_MAX), "synchronize");
  check(api().eventHostReset(event(points)), "zeEventHostReset");
}

void Queue::mark(int point) {
  barrier(event(point));
  marked_[point] = true;
}

void Queue::wait_for(int point) {
  if (!std::exchange(marked_[point], false)) return;
  check(api().eventHostSynchronize(event(point), UINT64_MAX), "synchronize");
  check(api().eventHostReset(event(point)), "zeEventHostReset");
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

void Staging::to_device(void* to, const void* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t chunk_bytes = std::min(half_bytes, bytes - done);
    std::byte* const buffer = half(next_);
    queue_.wait_for(next_);
    std::memcpy(buffer, static_cast<const std::byte*>(from) + done, chunk_bytes);
    queue_.copy(static_cast<std::byte*>(to) + done, buffer, chunk_bytes);
    queue_.mark(next_);
    next_ = 1 - next_;
    done += chunk_bytes;
  }
}

void Staging::to_host(void* to, const void* from, size_t bytes) {
  // While the host copies out of one half, the device fills the other.
  size_t requested = 0;
  const auto request_chunk = [&](int i) {
    if (requested == bytes) return size_t{0};
    const size_t chunk_bytes = std::min(half_bytes, bytes - requested);
    std::byte* const buffer = half(i);
    queue_.wait_for(i);
    queue_.copy(buffer, static_cast<const std::byte*>(from) + requested, chunk_bytes);
    queue_.mark(i);
    requested += chunk_bytes;
    return chunk_bytes;
  };
  int current = next_;
  size_t chunk_bytes = request_chunk(current);
  for (size_t done = 0; done < bytes; current = 1 - current) {
    const size_t following = request_chunk(1 - current);
    queue_.wait_for(current);
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

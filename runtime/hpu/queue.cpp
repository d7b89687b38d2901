#include "zerograd/runtime/hpu/queue.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "zerograd/runtime/error.h"

namespace zg::hpu {
namespace {

/// The first group of queues that computes; every device has one.
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

}  // namespace

Queue::Queue(ze_device_handle_t device) : device_(device) {
  const ze_command_queue_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                                          .ordinal = compute_ordinal(device),
                                          .mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS};
  check(api().commandListCreateImmediate(driver().context, device_, &wanted, &list_),
        "zeCommandListCreateImmediate");
  const ze_event_pool_desc_t pool = {.stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC,
                                     .flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE,
                                     .count = points + 1};
  ze_device_handle_t of = device_;
  check(api().eventPoolCreate(driver().context, &pool, 1, &of, &pool_), "zeEventPoolCreate");
  for (uint32_t i = 0; i <= points; ++i) {
    const ze_event_desc_t event = {.stype = ZE_STRUCTURE_TYPE_EVENT_DESC,
                                   .index = i,
                                   .signal = ZE_EVENT_SCOPE_FLAG_HOST,
                                   .wait = ZE_EVENT_SCOPE_FLAG_HOST};
    check(api().eventCreate(pool_, &event, &events_[i]), "zeEventCreate");
  }
}

Queue::~Queue() {
  // Nothing may be destroyed that the device still uses; an error has been told before.
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
  check(api().commandListAppendMemoryCopy(list_, to, from, bytes, nullptr, 0, nullptr), "copy");
  barrier();
}

void Queue::fill_zero(void* to, size_t bytes) {
  const uint8_t zero = 0;
  check(
      api().commandListAppendMemoryFill(list_, to, &zero, sizeof zero, bytes, nullptr, 0, nullptr),
      "fill_zero");
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

}  // namespace zg::hpu

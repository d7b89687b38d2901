#include <level_zero/ze_ddi.h>

#include "tests/fakes/level_zero/scheduler.h"
#include "tests/fakes/level_zero/settings.h"
#include "tests/fakes/level_zero/ticks.h"

// Events and their pools.
namespace zg::test_driver {
namespace {

ze_result_t pool_create(ze_context_handle_t, const ze_event_pool_desc_t* description,
                        uint32_t count, ze_device_handle_t* devices,
                        ze_event_pool_handle_t* handle) {
  Lock lock(state().mutex);
  if (!description->count)
    return refuse(ZE_RESULT_ERROR_INVALID_SIZE, "zeEventPoolCreate: no events");
  EventPool* const pool = make_handle<EventPool>(handle);
  pool->count = description->count;
  for (uint32_t i = 0; i < count; ++i)
    pool->devices.insert(device_of(devices[i], "zeEventPoolCreate"));
  pool->timestamps = description->flags & ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP;
  pool->host_visible = description->flags & ZE_EVENT_POOL_FLAG_HOST_VISIBLE;
  return ZE_RESULT_SUCCESS;
}

ze_result_t pool_destroy(ze_event_pool_handle_t handle) {
  Lock lock(state().mutex);
  EventPool* const pool = from_handle<EventPool>(handle, "zeEventPoolDestroy");
  if (!pool) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (!pool->used.empty())
    return refuse(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE, "zeEventPoolDestroy: %zu events are left",
                  pool->used.size());
  end_handle(pool);
  return ZE_RESULT_SUCCESS;
}

ze_result_t event_create(ze_event_pool_handle_t pool_handle, const ze_event_desc_t* description,
                         ze_event_handle_t* handle) {
  Lock lock(state().mutex);
  EventPool* const pool = from_handle<EventPool>(pool_handle, "zeEventCreate");
  if (!pool) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (description->index >= pool->count || !pool->used.insert(description->index).second)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT, "zeEventCreate: index %u of a pool of %u %s",
                  description->index, pool->count,
                  description->index >= pool->count ? "does not exist" : "is in use");
  Event* const event = make_handle<Event>(handle);
  event->pool = pool;
  event->index = description->index;
  return ZE_RESULT_SUCCESS;
}

ze_result_t event_destroy(ze_event_handle_t handle) {
  Lock lock(state().mutex);
  Event* const event = from_handle<Event>(handle, "zeEventDestroy");
  if (!event) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if ((event->signals || event->waits) && !state().lost)
    return refuse(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE,
                  "zeEventDestroy: %d commands will signal it, %d wait for it", event->signals,
                  event->waits);
  event->pool->used.erase(event->index);
  end_handle(event);
  return ZE_RESULT_SUCCESS;
}

ze_result_t event_signal(ze_event_handle_t handle) {
  Lock lock(state().mutex);
  Event* const event = from_handle<Event>(handle, "zeEventHostSignal");
  if (!event) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  event->signalled = true;
  ++state().activity;
  state().changed.notify_all();
  return ZE_RESULT_SUCCESS;
}

/// The event of a handle, for host functions, which need a host-visible pool. Null: invalid.
Event* visible(ze_event_handle_t handle, const char* function) {
  Event* const event = from_handle<Event>(handle, function);
  if (event && !event->pool->host_visible) {
    report("%s: the event's pool is not ZE_EVENT_POOL_FLAG_HOST_VISIBLE", function);
    return nullptr;
  }
  return event;
}

ze_result_t event_synchronize(ze_event_handle_t handle, uint64_t timeout_ns) {
  Lock lock(state().mutex);
  Event* const event = visible(handle, "zeEventHostSynchronize");
  if (!event) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (settings().trace) report("the host waits for an event");
  return wait_until(
      lock, [event] { return event->signalled; }, timeout_ns, signalling(*event),
      "zeEventHostSynchronize");
}

ze_result_t event_query(ze_event_handle_t handle) {
  Lock lock(state().mutex);
  Event* const event = visible(handle, "zeEventQueryStatus");
  if (!event) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (!event->signalled) make_progress(lock);
  if (state().lost) return ZE_RESULT_ERROR_DEVICE_LOST;
  return event->signalled ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}

ze_result_t event_reset(ze_event_handle_t handle) {
  Lock lock(state().mutex);
  Event* const event = from_handle<Event>(handle, "zeEventHostReset");
  if (!event) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (event->signals && !state().lost)
    return refuse(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE,
                  "zeEventHostReset: %d commands that signal it have not run", event->signals);
  event->signalled = false;
  return ZE_RESULT_SUCCESS;
}

ze_result_t event_timestamp(ze_event_handle_t handle, ze_kernel_timestamp_result_t* result) {
  Lock lock(state().mutex);
  Event* const event = from_handle<Event>(handle, "zeEventQueryKernelTimestamp");
  if (!event) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (!event->pool->timestamps)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                  "zeEventQueryKernelTimestamp: its pool is not of KERNEL_TIMESTAMP");
  if (!event->signalled) return ZE_RESULT_NOT_READY;
  const uint64_t start = ticks(event->start_ns, kernel_timestamp_bits);
  const uint64_t end = ticks(event->end_ns, kernel_timestamp_bits);
  *result = {.global = {start, end}, .context = {start, end}};
  return ZE_RESULT_SUCCESS;
}

}  // namespace
}  // namespace zg::test_driver

using namespace zg::test_driver;

ZG_TABLE(EventPool, event_pool) {
  table->pfnCreate = pool_create;
  table->pfnDestroy = pool_destroy;
}

ZG_TABLE(Event, event) {
  table->pfnCreate = event_create;
  table->pfnDestroy = event_destroy;
  table->pfnHostSignal = event_signal;
  table->pfnHostSynchronize = event_synchronize;
  table->pfnQueryStatus = event_query;
  table->pfnHostReset = event_reset;
  table->pfnQueryKernelTimestamp = event_timestamp;
}

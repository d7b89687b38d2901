#include <level_zero/ze_ddi.h>

#include "tests/fakes/level_zero/scheduler.h"
#include "tests/fakes/level_zero/settings.h"

// Memory of devices, of the host, and of both.
namespace zg::test_driver {
namespace {

constexpr size_t most_alignment = 4096;

ze_result_t allocate(const char* function, size_t bytes, size_t alignment, ze_memory_type_t type,
                     Device* device, void** pointer) {
  State& s = state();
  if (!bytes) return refuse(ZE_RESULT_ERROR_UNSUPPORTED_SIZE, "%s: 0 bytes", function);
  if (alignment > most_alignment || (alignment & (alignment - 1)))
    return refuse(ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT, "%s: alignment %zu", function, alignment);
  if (bytes > settings().memory) return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
  if (device && device->allocated + bytes > settings().memory)
    return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
  *pointer = s.memory.allocate(bytes, alignment, type, device);
  if (!*pointer) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
  if (device) device->allocated += bytes;
  return ZE_RESULT_SUCCESS;
}

ze_result_t alloc_device(ze_context_handle_t, const ze_device_mem_alloc_desc_t*, size_t bytes,
                         size_t alignment, ze_device_handle_t handle, void** pointer) {
  Lock lock(state().mutex);
  Device* const device = device_of(handle, "zeMemAllocDevice");
  if (!device) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  return allocate("zeMemAllocDevice", bytes, alignment, ZE_MEMORY_TYPE_DEVICE, device, pointer);
}

ze_result_t alloc_host(ze_context_handle_t, const ze_host_mem_alloc_desc_t*, size_t bytes,
                       size_t alignment, void** pointer) {
  Lock lock(state().mutex);
  return allocate("zeMemAllocHost", bytes, alignment, ZE_MEMORY_TYPE_HOST, nullptr, pointer);
}

/// Whether a pending command accesses memory of the allocation.
const Command* user_of(const Allocation& a) {
  for (const Queue* queue : state().queues) {
    for (const Command& command : queue->commands) {
      for (const Range& range : command.memory) {
        if (a.holds(range.begin)) return &command;
      }
    }
  }
  return nullptr;
}

ze_result_t mem_free(ze_context_handle_t, void* pointer) {
  Lock lock(state().mutex);
  State& s = state();
  const Allocation* const a = s.memory.find(pointer);
  if (!a || a->begin != pointer)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT, "zeMemFree: %p is not an allocation", pointer);
  if (const Command* const user = s.lost ? nullptr : user_of(*a))
    return refuse(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE,
                  "zeMemFree: %zu bytes of which a command has not run: %s", a->bytes,
                  user->what.c_str());
  s.changed.wait(lock, [&] { return !s.running; });
  if (a->device) a->device->allocated -= a->bytes;
  s.memory.free(*a);
  return ZE_RESULT_SUCCESS;
}

ze_result_t alloc_properties(ze_context_handle_t, const void* pointer,
                             ze_memory_allocation_properties_t* properties,
                             ze_device_handle_t* device) {
  Lock lock(state().mutex);
  const Allocation* const a = state().memory.find(pointer);
  properties->type = a ? a->type : ZE_MEMORY_TYPE_UNKNOWN;
  properties->id = a ? reinterpret_cast<uintptr_t>(a->begin) : 0;
  properties->pageSize = 4096;
  if (device) *device = reinterpret_cast<ze_device_handle_t>(a ? a->device : nullptr);
  return ZE_RESULT_SUCCESS;
}

ze_result_t address_range(ze_context_handle_t, const void* pointer, void** begin, size_t* bytes) {
  Lock lock(state().mutex);
  const Allocation* const a = state().memory.find(pointer);
  if (!a)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT, "zeMemGetAddressRange: %p is not an allocation",
                  pointer);
  if (begin) *begin = a->begin;
  if (bytes) *bytes = a->bytes;
  return ZE_RESULT_SUCCESS;
}

ze_result_t context_create(ze_driver_handle_t, const ze_context_desc_t*,
                           ze_context_handle_t* handle) {
  Lock lock(state().mutex);
  make_handle<Context>(handle);
  return ZE_RESULT_SUCCESS;
}

ze_result_t context_destroy(ze_context_handle_t handle) {
  Lock lock(state().mutex);
  Context* const context = from_handle<Context>(handle, "zeContextDestroy");
  if (!context) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  end_handle(context);
  return ZE_RESULT_SUCCESS;
}

}  // namespace
}  // namespace zg::test_driver

using namespace zg::test_driver;

ZG_TABLE(Mem, mem) {
  table->pfnAllocDevice = alloc_device;
  table->pfnAllocHost = alloc_host;
  table->pfnFree = mem_free;
  table->pfnGetAllocProperties = alloc_properties;
  table->pfnGetAddressRange = address_range;
}

ZG_TABLE(Context, context) {
  table->pfnCreate = context_create;
  table->pfnDestroy = context_destroy;
}

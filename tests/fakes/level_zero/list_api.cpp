#include <level_zero/ze_ddi.h>

#include "tests/fakes/level_zero/append.h"
#include "tests/fakes/level_zero/scheduler.h"

// The functions of queues, command lists and fences: zeCommandQueue*, zeCommandList*, zeFence*.
namespace zg::test_driver {
namespace {

Queue* make_queue(ze_device_handle_t device, const ze_command_queue_desc_t* description,
                  const char* function) {
  Device* const on = device_of(device, function);
  if (!on) return nullptr;
  if (description->ordinal != 0) {
    report("%s: expected queue group 0, got %u", function, description->ordinal);
    return nullptr;
  }
  State& s = state();
  ze_command_queue_handle_t handle;
  Queue* const queue = make_handle<Queue>(&handle);
  queue->device = on;
  queue->number = s.queues_made++;
  queue->synchronous = description->mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
  s.queues.push_back(queue);
  return queue;
}

void end_queue(Queue* queue) {
  if (!queue->commands.empty()) {
    report("a queue or immediate list is destroyed before %zu commands have run; the first is %s",
           queue->commands.size(), queue->commands.front().what.c_str());
    for (Command& command : queue->commands) {
      for (Event* event : command.waits) --event->waits;
      if (command.signal) --command.signal->signals;
    }
  }
  std::erase(state().queues, queue);
  end_handle(queue);
}

ze_result_t queue_create(ze_context_handle_t, ze_device_handle_t device,
                         const ze_command_queue_desc_t* description,
                         ze_command_queue_handle_t* handle) {
  Lock lock(state().mutex);
  Queue* const queue = make_queue(device, description, "zeCommandQueueCreate");
  if (!queue) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  *handle = reinterpret_cast<ze_command_queue_handle_t>(queue);
  return ZE_RESULT_SUCCESS;
}

ze_result_t queue_destroy(ze_command_queue_handle_t handle) {
  Lock lock(state().mutex);
  Queue* const queue = from_handle<Queue>(handle, "zeCommandQueueDestroy");
  if (!queue) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  end_queue(queue);
  return ZE_RESULT_SUCCESS;
}

ze_result_t queue_synchronize(ze_command_queue_handle_t handle, uint64_t timeout_ns) {
  Lock lock(state().mutex);
  Queue* const queue = from_handle<Queue>(handle, "zeCommandQueueSynchronize");
  if (!queue) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  return wait_until(
      lock, [queue] { return queue->commands.empty(); }, timeout_ns, queue,
      "zeCommandQueueSynchronize");
}

ze_result_t queue_execute(ze_command_queue_handle_t handle, uint32_t count,
                          ze_command_list_handle_t* lists, ze_fence_handle_t fence_handle) {
  Lock lock(state().mutex);
  const char* const name = "zeCommandQueueExecuteCommandLists";
  Queue* const queue = from_handle<Queue>(handle, name);
  Fence* const fence = fence_handle ? from_handle<Fence>(fence_handle, name) : nullptr;
  if (!queue || (fence_handle && !fence)) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  for (uint32_t i = 0; i < count; ++i) {
    CommandList* const list = from_handle<CommandList>(lists[i], name);
    if (!list) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (list->immediate || !list->closed)
      return refuse(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE,
                    "%s: expected closed lists that are not immediate", name);
  }
  for (uint32_t i = 0; i < count; ++i)
    for (const Command& command : from_handle<CommandList>(lists[i], name)->recorded)
      enqueue(*queue, command);
  if (fence) {
    enqueue(*queue,
            {.what = "signal of a fence", .order = Command::Order::barrier, .work = [fence] {
               Lock inner(state().mutex);
               fence->signalled = true;
               return std::string();
             }});
  }
  return ZE_RESULT_SUCCESS;
}

ze_result_t list_create(ze_context_handle_t, ze_device_handle_t device,
                        const ze_command_list_desc_t*, ze_command_list_handle_t* handle) {
  Lock lock(state().mutex);
  Device* const on = device_of(device, "zeCommandListCreate");
  if (!on) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  make_handle<CommandList>(handle)->device = on;
  return ZE_RESULT_SUCCESS;
}

ze_result_t list_create_immediate(ze_context_handle_t, ze_device_handle_t device,
                                  const ze_command_queue_desc_t* description,
                                  ze_command_list_handle_t* handle) {
  Lock lock(state().mutex);
  Queue* const queue = make_queue(device, description, "zeCommandListCreateImmediate");
  if (!queue) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  CommandList* const list = make_handle<CommandList>(handle);
  list->device = queue->device;
  list->immediate = queue;
  return ZE_RESULT_SUCCESS;
}

ze_result_t list_destroy(ze_command_list_handle_t handle) {
  Lock lock(state().mutex);
  CommandList* const list = from_handle<CommandList>(handle, "zeCommandListDestroy");
  if (!list) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (list->immediate) end_queue(list->immediate);
  end_handle(list);
  return ZE_RESULT_SUCCESS;
}

ze_result_t list_close(ze_command_list_handle_t handle) {
  Lock lock(state().mutex);
  CommandList* const list = from_handle<CommandList>(handle, "zeCommandListClose");
  if (!list) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  list->closed = true;
  return ZE_RESULT_SUCCESS;
}

ze_result_t list_reset(ze_command_list_handle_t handle) {
  Lock lock(state().mutex);
  CommandList* const list = from_handle<CommandList>(handle, "zeCommandListReset");
  if (!list) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  list->recorded.clear();
  list->closed = false;
  return ZE_RESULT_SUCCESS;
}

ze_result_t fence_create(ze_command_queue_handle_t queue, const ze_fence_desc_t* description,
                         ze_fence_handle_t* handle) {
  Lock lock(state().mutex);
  if (!from_handle<Queue>(queue, "zeFenceCreate")) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  make_handle<Fence>(handle)->signalled = description->flags & ZE_FENCE_FLAG_SIGNALED;
  return ZE_RESULT_SUCCESS;
}

ze_result_t fence_destroy(ze_fence_handle_t handle) {
  Lock lock(state().mutex);
  Fence* const fence = from_handle<Fence>(handle, "zeFenceDestroy");
  if (!fence) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  end_handle(fence);
  return ZE_RESULT_SUCCESS;
}

ze_result_t fence_synchronize(ze_fence_handle_t handle, uint64_t timeout_ns) {
  Lock lock(state().mutex);
  Fence* const fence = from_handle<Fence>(handle, "zeFenceHostSynchronize");
  if (!fence) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  return wait_until(
      lock, [fence] { return fence->signalled; }, timeout_ns, nullptr, "zeFenceHostSynchronize");
}

ze_result_t fence_query(ze_fence_handle_t handle) {
  Lock lock(state().mutex);
  Fence* const fence = from_handle<Fence>(handle, "zeFenceQueryStatus");
  if (!fence) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (!fence->signalled) make_progress(lock);
  return fence->signalled ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}

ze_result_t fence_reset(ze_fence_handle_t handle) {
  Lock lock(state().mutex);
  Fence* const fence = from_handle<Fence>(handle, "zeFenceReset");
  if (!fence) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  fence->signalled = false;
  return ZE_RESULT_SUCCESS;
}

}  // namespace
}  // namespace zg::test_driver

using namespace zg::test_driver;

ZG_TABLE(CommandList, command_list) {
  table->pfnCreate = list_create;
  table->pfnCreateImmediate = list_create_immediate;
  table->pfnDestroy = list_destroy;
  table->pfnClose = list_close;
  table->pfnReset = list_reset;
  table->pfnAppendBarrier = append_barrier;
  table->pfnAppendMemoryRangesBarrier = append_ranges_barrier;
  table->pfnAppendMemoryCopy = append_copy;
  table->pfnAppendMemoryFill = append_fill;
  table->pfnAppendSignalEvent = append_signal;
  table->pfnAppendWaitOnEvents = append_wait;
  table->pfnAppendEventReset = append_reset;
  table->pfnAppendLaunchKernel = append_kernel;
}

ZG_TABLE(CommandQueue, command_queue) {
  table->pfnCreate = queue_create;
  table->pfnDestroy = queue_destroy;
  table->pfnExecuteCommandLists = queue_execute;
  table->pfnSynchronize = queue_synchronize;
}

ZG_TABLE(Fence, fence) {
  table->pfnCreate = fence_create;
  table->pfnDestroy = fence_destroy;
  table->pfnHostSynchronize = fence_synchronize;
  table->pfnQueryStatus = fence_query;
  table->pfnReset = fence_reset;
}

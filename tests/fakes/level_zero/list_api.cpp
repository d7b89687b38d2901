#include <level_zero/ze_ddi.h>

#include "tests/fakes/level_zero/append.h"
#include "tests/fakes/level_zero/scheduler.h"
#include "tests/fakes/level_zero/settings.h"

// The functions of queues and command lists: zeCommandQueue*, zeCommandList*.
namespace zg::test_driver {
namespace {

Queue* make_queue(ze_device_handle_t device, const ze_command_queue_desc_t* description,
                  const char* function) {
  Device* const on = device_of(device, function);
  if (!on) return nullptr;
  constexpr ze_command_queue_flags_t explicit_only = 1, in_order = 2;  // spec 1.7
  if (description->ordinal >= settings().groups) {
    report("%s: there are %u queue groups, got %u", function, settings().groups,
           description->ordinal);
    return nullptr;
  }
  if (description->flags & ~(explicit_only | (settings().in_order ? in_order : 0))) return nullptr;
  State& s = state();
  ze_command_queue_handle_t handle;
  Queue* const queue = make_handle<Queue>(&handle);
  queue->device = on;
  queue->number = s.queues_made++;
  queue->computes = description->ordinal == 0;
  queue->in_order = description->flags & in_order;
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
                          ze_command_list_handle_t* lists, ze_fence_handle_t fence) {
  Lock lock(state().mutex);
  const char* const name = "zeCommandQueueExecuteCommandLists";
  Queue* const queue = from_handle<Queue>(handle, name);
  if (!queue || fence) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
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

}  // namespace
}  // namespace zg::test_driver

using namespace zg::test_driver;

ZG_TABLE(CommandList, command_list) {
  table->pfnCreate = list_create;
  table->pfnCreateImmediate = list_create_immediate;
  table->pfnDestroy = list_destroy;
  table->pfnClose = list_close;
  table->pfnAppendBarrier = append_barrier;
  table->pfnAppendMemoryCopy = append_copy;
  table->pfnAppendMemoryFill = append_fill;
  table->pfnAppendWaitOnEvents = append_wait;
  table->pfnAppendLaunchKernel = append_kernel;
}

ZG_TABLE(CommandQueue, command_queue) {
  table->pfnCreate = queue_create;
  table->pfnDestroy = queue_destroy;
  table->pfnExecuteCommandLists = queue_execute;
  table->pfnSynchronize = queue_synchronize;
}

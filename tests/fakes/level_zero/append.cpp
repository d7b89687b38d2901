#include "tests/fakes/level_zero/append.h"

#include <cstring>

#include "tests/fakes/level_zero/scheduler.h"
#include "tests/fakes/level_zero/settings.h"

// Commands other than kernels that are appended to command lists.
namespace zg::test_driver {
namespace {

/// Appends a command to the list of this handle.
ze_result_t append(ze_command_list_handle_t handle, Command command, ze_event_handle_t signal,
                   uint32_t count, ze_event_handle_t* waits) {
  Lock lock(state().mutex);
  CommandList* const list = from_handle<CommandList>(handle, command.what.c_str());
  if (!list || !set_events(command, signal, count, waits))
    return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  return submit(lock, *list, std::move(command));
}

/// Checks that the list's device may access all of the range. Chunks that lie side by side are one
/// range only to their own device. Host memory that was not allocated through Level Zero is not
/// checked.
ze_result_t check_range(const CommandList& list, Range range, const char* what) {
  if (!range.begin) return refuse(ZE_RESULT_ERROR_INVALID_NULL_POINTER, "%s is null", what);
  const Allocation* const a = state().memory.find(range.begin);
  if (!a) return ZE_RESULT_SUCCESS;
  const bool own = a->device && a->device == list.device;
  const size_t at = static_cast<size_t>(static_cast<const std::byte*>(range.begin) - a->begin);
  const Allocation* last = a;
  while (own && last &&
         range.bytes > static_cast<size_t>(last->begin - a->begin) + last->bytes - at) {
    last = state().memory.find(last->begin + last->bytes);
    if (last && last->device != a->device) last = nullptr;
  }
  if (!last || (!own && range.bytes > a->bytes - at))
    return refuse(ZE_RESULT_ERROR_INVALID_SIZE, "%s: %zu bytes from byte %zu of %zu on", what,
                  range.bytes, at, a->bytes);
  if (a->device && !own && !settings().peers)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                  "%s lies in the memory of %s, the list is of %s", what, a->device->name,
                  list.device->name);
  return ZE_RESULT_SUCCESS;
}

}  // namespace

bool set_events(Command& command, ze_event_handle_t signal, uint32_t count,
                ze_event_handle_t* waits) {
  for (uint32_t i = 0; i < count; ++i) {
    Event* const event = from_handle<Event>(waits[i], command.what.c_str());
    if (!event) return false;
    command.waits.push_back(event);
  }
  if (signal && !(command.signal = from_handle<Event>(signal, command.what.c_str()))) return false;
  return true;
}

ze_result_t append_barrier(ze_command_list_handle_t list, ze_event_handle_t signal, uint32_t count,
                           ze_event_handle_t* waits) {
  return append(list, {.what = "barrier", .order = Command::Order::barrier}, signal, count, waits);
}

ze_result_t append_copy(ze_command_list_handle_t handle, void* to, const void* from, size_t bytes,
                        ze_event_handle_t signal, uint32_t count, ze_event_handle_t* waits) {
  Lock lock(state().mutex);
  CommandList* const list = from_handle<CommandList>(handle, "zeCommandListAppendMemoryCopy");
  if (!list) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  for (const auto& [range, what] :
       {std::pair{Range{to, bytes}, "zeCommandListAppendMemoryCopy: dstptr"},
        std::pair{Range{from, bytes}, "zeCommandListAppendMemoryCopy: srcptr"}}) {
    if (const ze_result_t bad = check_range(*list, range, what)) return bad;
  }
  Command command{.what = "copy of " + std::to_string(bytes) + " bytes",
                  .work =
                      [=] {
                        device_does = "a copy";
                        std::memcpy(to, from, bytes);
                        device_does = nullptr;
                        return std::string();
                      },
                  .memory = {{to, bytes}, {from, bytes}}};
  if (!set_events(command, signal, count, waits)) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  return submit(lock, *list, std::move(command));
}

ze_result_t append_fill(ze_command_list_handle_t handle, void* to, const void* pattern,
                        size_t pattern_bytes, size_t bytes, ze_event_handle_t signal,
                        uint32_t count, ze_event_handle_t* waits) {
  constexpr size_t longest = 16;
  Lock lock(state().mutex);
  CommandList* const list = from_handle<CommandList>(handle, "zeCommandListAppendMemoryFill");
  if (!list) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (!pattern) return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
  if (!pattern_bytes || pattern_bytes > longest || (pattern_bytes & (pattern_bytes - 1)) ||
      bytes % pattern_bytes)
    return refuse(ZE_RESULT_ERROR_INVALID_SIZE,
                  "zeCommandListAppendMemoryFill: %zu bytes of a pattern of %zu", bytes,
                  pattern_bytes);
  if (const ze_result_t bad = check_range(*list, {to, bytes}, "zeCommandListAppendMemoryFill: ptr"))
    return bad;
  const std::string part(static_cast<const char*>(pattern), pattern_bytes);
  Command command{.what = "fill of " + std::to_string(bytes) + " bytes",
                  .work =
                      [=] {
                        device_does = "a fill";
                        for (size_t i = 0; i < bytes; i += part.size())
                          std::memcpy(static_cast<char*>(to) + i, part.data(), part.size());
                        device_does = nullptr;
                        return std::string();
                      },
                  .memory = {{to, bytes}}};
  if (!set_events(command, signal, count, waits)) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  return submit(lock, *list, std::move(command));
}

ze_result_t append_wait(ze_command_list_handle_t list, uint32_t count, ze_event_handle_t* waits) {
  return append(list, {.what = "wait for events", .order = Command::Order::wait}, nullptr, count,
                waits);
}

}  // namespace zg::test_driver

#pragma once

#include <level_zero/ze_api.h>

#include "tests/fakes/level_zero/objects.h"

namespace zg::test_driver {

/// Stores in `command` the events that it waits for and the event that it signals. Prints a message
/// and returns false if the handle of an event is invalid.
bool set_events(Command& command, ze_event_handle_t signal, uint32_t count,
                ze_event_handle_t* waits);

// The functions zeCommandListAppend* of the driver's tables. `count` is the number of
// `waits`; `ranges` is the number of `bytes` and `begins`.
ze_result_t append_barrier(ze_command_list_handle_t list, ze_event_handle_t signal, uint32_t count,
                           ze_event_handle_t* waits);
ze_result_t append_copy(ze_command_list_handle_t list, void* to, const void* from, size_t bytes,
                        ze_event_handle_t signal, uint32_t count, ze_event_handle_t* waits);
ze_result_t append_fill(ze_command_list_handle_t list, void* to, const void* pattern,
                        size_t pattern_bytes, size_t bytes, ze_event_handle_t signal,
                        uint32_t count, ze_event_handle_t* waits);
ze_result_t append_wait(ze_command_list_handle_t list, uint32_t count, ze_event_handle_t* waits);
ze_result_t append_kernel(ze_command_list_handle_t list, ze_kernel_handle_t kernel,
                          const ze_group_count_t* groups, ze_event_handle_t signal, uint32_t count,
                          ze_event_handle_t* waits);

}  // namespace zg::test_driver

#pragma once

#include <functional>

#include "tests/fakes/level_zero/state.h"

namespace zg::test_driver {

/// Nanoseconds since some time before the first call.
uint64_t now_ns();

using Lock = std::unique_lock<std::mutex>;

/// Adds a command to what a device is to do; it runs when the host waits for something.
ze_result_t submit(Lock& lock, CommandList& list, Command command);
void enqueue(Queue& queue, Command command);

/// Runs commands until done() or the timeout; at once what it needs of `first` (null: any), as late
/// as may be all else. A wait without end for what nobody can do any more is reported, and gives
/// DEVICE_LOST.
ze_result_t wait_until(Lock& lock, const std::function<bool()>& done, uint64_t timeout_ns,
                       const Queue* first, const char* function);
/// Does one command, if there is one to do: a host that asks again and again gets on.
void make_progress(Lock& lock);

/// The queue with the command that will signal the event, or null.
const Queue* signalling(const Event& event);

}  // namespace zg::test_driver

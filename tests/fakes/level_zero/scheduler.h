#pragma once

#include <functional>

#include "tests/fakes/level_zero/state.h"

namespace zg::test_driver {

/// Nanoseconds since some time before the first call.
uint64_t now_ns();

using Lock = std::unique_lock<std::mutex>;

/// Adds a command to the list or its queue. It runs when the host waits for something.
ze_result_t submit(Lock& lock, CommandList& list, Command command);
void enqueue(Queue& queue, Command command);

/// Runs commands until done() returns true or the timeout. It runs commands of the queue `first`
/// (null: any) when they are needed and all others as late as possible. If done() can never become
/// true, it reports that and returns DEVICE_LOST.
ze_result_t wait_until(Lock& lock, const std::function<bool()>& done, uint64_t timeout_ns,
                       const Queue* first, const char* function);
/// Runs one command, if one can run, so that a host that polls an event makes progress.
void make_progress(Lock& lock);

/// The queue with the command that will signal the event, or null.
const Queue* signalling(const Event& event);

}  // namespace zg::test_driver

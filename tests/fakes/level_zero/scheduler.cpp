#include "tests/fakes/level_zero/scheduler.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "tests/fakes/level_zero/settings.h"

namespace zg::test_driver {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

bool may_run(const Command& command) {
  return std::ranges::all_of(command.waits, [](const Event* e) { return e->signalled; });
}

struct Candidate {
  Queue* queue = nullptr;
  size_t index = 0;
};

/// The commands of one queue that may run now. Level Zero does not order commands between two
/// barriers.
void candidates_of(Queue& queue, std::vector<Candidate>& all) {
  for (size_t i = 0; i < queue.commands.size(); ++i) {
    const Command& command = queue.commands[i];
    const bool first = command.order != Command::Order::barrier || i == 0;
    if (first && may_run(command)) all.push_back({&queue, i});
    if (queue.in_order || command.order != Command::Order::none) return;
  }
}

Candidate choose(const Queue* first) {
  State& s = state();
  std::vector<Candidate> all;
  if (settings().chaos) {
    static std::minstd_rand random(static_cast<unsigned>(settings().chaos));
    for (Queue* queue : s.queues) candidates_of(*queue, all);
    return all.empty() ? Candidate{} : all[random() % all.size()];
  }
  for (Queue* queue : s.queues) {
    if (queue == first) candidates_of(*queue, all);
  }
  for (Queue* queue : s.queues) {
    if (queue != first && all.empty()) candidates_of(*queue, all);
  }
  return all.empty() ? Candidate{} : all.front();
}

/// The caller holds the mutex. It is released while the command runs.
void run(Lock& lock, const Candidate& candidate) {
  State& s = state();
  Command command = std::move(candidate.queue->commands[candidate.index]);
  candidate.queue->commands.erase(candidate.queue->commands.begin() +
                                  static_cast<std::ptrdiff_t>(candidate.index));
  if (settings().trace)
    report("%s%s: %s", candidate.queue->device->name,
           candidate.queue->computes ? "" : ", copy engine", command.what.c_str());
  for (Event* event : command.waits) --event->waits;
  std::string error;
  const uint64_t start_ns = now_ns();
  if (command.work) {
    s.running = true;
    std::vector<const void*> places;
    for (const Range& range : command.memory) places.push_back(range.begin);
    s.memory.open(candidate.queue->device, places);
    lock.unlock();
    error = command.work();
    lock.lock();
    s.running = false;
    const Allocation* const touched =
        error.empty() && settings().strict ? s.memory.find_touched() : nullptr;
    if (touched)
      error = "wrote just before or after an allocation of " + std::to_string(touched->bytes) +
              " bytes on " + (touched->device ? touched->device->name : "the host");
    if (settings().peers) s.memory.close();  // what the command named of other devices
  }
  if (!error.empty()) {
    report("%s: %s", command.what.c_str(), error.c_str());
    s.lost = true;
  } else if (Event* const event = command.signal) {
    event->start_ns = start_ns;
    event->end_ns = now_ns();
    event->signalled = true;
    --event->signals;
  }
  ++s.activity;
  s.changed.notify_all();
}

void run_all(Lock& lock) {
  State& s = state();
  while (!s.lost) {
    if (s.running) {
      s.changed.wait(lock);
      continue;
    }
    const Candidate next = choose(nullptr);
    if (!next.queue) break;
    run(lock, next);
  }
  if (!s.running) s.memory.close();
}

void report_stuck(const char* function) {
  report("DEADLOCK: %s waits for work that cannot run any more", function);
  for (const Queue* queue : state().queues) {
    if (queue->commands.empty()) continue;
    report("  %s, list %llu: %zu commands, first %s", queue->device->name,
           static_cast<unsigned long long>(queue->number), queue->commands.size(),
           queue->commands.front().what.c_str());
  }
}

}  // namespace

uint64_t now_ns() {
  static const Clock::time_point start = Clock::now();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

void enqueue(Queue& queue, Command command) {
  for (Event* event : command.waits) ++event->waits;
  if (command.signal) ++command.signal->signals;
  queue.commands.push_back(std::move(command));
  ++state().activity;
}

ze_result_t submit(Lock& lock, CommandList& list, Command command) {
  if (state().lost) return ZE_RESULT_ERROR_DEVICE_LOST;
  std::vector<Event*> events = command.waits;
  if (command.signal) events.push_back(command.signal);
  for (const Event* event : events)
    if (const auto& devices = event->pool->devices;
        !devices.empty() && !devices.contains(list.device))
      return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                    "%s: an event of a pool for %s, the list is of %s", command.what.c_str(),
                    (*devices.begin())->name, list.device->name);
  if (!list.immediate) {
    if (list.closed)
      return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT, "%s: appended to a closed list",
                    command.what.c_str());
    list.recorded.push_back(std::move(command));
    return ZE_RESULT_SUCCESS;
  }
  Queue* const queue = list.immediate;
  enqueue(*queue, std::move(command));
  if (settings().at_once) run_all(lock);
  if (!queue->synchronous) return ZE_RESULT_SUCCESS;
  return wait_until(
      lock, [queue] { return queue->commands.empty(); }, UINT64_MAX, queue, "a synchronous list");
}

ze_result_t wait_until(Lock& lock, const std::function<bool()>& done, uint64_t timeout_ns,
                       const Queue* first, const char* function) {
  State& s = state();
  const bool endless = timeout_ns == UINT64_MAX;
  const Clock::time_point begin = Clock::now();
  Clock::time_point quiet_since = begin;
  uint64_t activity = s.activity;
  ze_result_t result = ZE_RESULT_SUCCESS;
  for (;;) {
    if (s.lost) {
      result = ZE_RESULT_ERROR_DEVICE_LOST;
      break;
    }
    if (done()) break;
    const Candidate next = s.running ? Candidate{} : choose(first);
    if (next.queue) {
      run(lock, next);
      continue;
    }
    // Another thread executes a command, or may submit more work to the device.
    const Clock::time_point now = Clock::now();
    if (activity != s.activity || s.running) quiet_since = now;
    activity = s.activity;
    if (!endless && now - begin >= std::chrono::nanoseconds(timeout_ns)) {
      result = ZE_RESULT_NOT_READY;
      break;
    }
    if (endless && now - quiet_since >= milliseconds(settings().patience_ms)) {
      report_stuck(function);
      s.lost = true;
      result = ZE_RESULT_ERROR_DEVICE_LOST;
      break;
    }
    if (!s.running) s.memory.close();
    s.changed.wait_for(lock, milliseconds(1));
  }
  if (!s.running) s.memory.close();
  return result;
}

void make_progress(Lock& lock) {
  State& s = state();
  if (s.running || s.lost) return;
  if (const Candidate next = choose(nullptr); next.queue) run(lock, next);
  if (!s.running) s.memory.close();
}

const Queue* signalling(const Event& event) {
  for (const Queue* queue : state().queues) {
    for (const Command& command : queue->commands) {
      if (command.signal == &event) return queue;
    }
  }
  return nullptr;
}

}  // namespace zg::test_driver

#include "zerograd/runtime/cpu/team.h"

#include <omp.h>

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "zerograd/runtime/text/format.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace zg::cpu {
namespace {

// libgomp is not instrumented, so ThreadSanitizer cannot see that a parallel region starts after
// the code before it and ends before the code after it. release() and acquire() tell it exactly
// that; a race between two tasks is still reported.
inline void release(void* edge) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(edge);
#else
  (void)edge;
#endif
}
inline void acquire(void* edge) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(edge);
#else
  (void)edge;
#endif
}

bool address_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

struct Region {
  const TaskRef& f;
  const int64_t tasks;
  std::atomic<int64_t> next{0};
  char start = 0, end = 0;
};

void work(Region& region, int worker) {
  acquire(&region.start);
  for (int64_t task; (task = region.next.fetch_add(1, std::memory_order_relaxed)) < region.tasks;)
    region.f(task, worker);
  release(&region.end);
}

// OpenMP passes the address of the region's data to its threads before release() can run. So
// ThreadSanitizer does not check this function.
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread))
#endif
void fork(int workers, Region& region) {
#pragma omp parallel num_threads(workers)
  work(region, omp_get_thread_num());
}

// If the system refuses a thread, libgomp ends the process; this library must throw an error. So
// before a team grows, as many threads as it lacks are started and ended as a test. libgomp's new
// threads then reuse their stacks. Only one rank at a time tests and grows its team, because the
// team of another rank could take the stacks in between.
void require_threads(int workers) {
  static thread_local int had = 1;
  if (workers == had) return;
  if (workers < had) {
    if (address_limit())
      had = workers;  // a smaller team: libgomp ends the threads that it does not use
    return;
  }
  static std::mutex growth;
  const std::lock_guard alone(growth);
  std::mutex gate;
  std::vector<std::thread> helpers;
  try {
    const std::lock_guard closed(gate);  // all threads must be started before the first one ends
    for (int i = had; i < workers; ++i)
      helpers.emplace_back([&gate] { const std::lock_guard open(gate); });
  } catch (const std::system_error& error) {
    for (std::thread& helper : helpers) helper.join();
    raise<OutOfMemory>(
        "threads: the system refused thread {} of {}: {}; expected memory for their stacks; try "
        "fewer threads, or a higher limit (`ulimit -v`, `ulimit -u`)",
        had + static_cast<int>(helpers.size()) + 1, workers, error.what());
  }
  for (std::thread& helper : helpers) helper.join();
  const auto nothing = [](int64_t, int) {};
  const TaskRef task = nothing;
  Region empty{task, 0};
  release(&empty.start);
  fork(workers, empty);
  acquire(&empty.end);
  had = workers;
}

}  // namespace

void team(int threads, int64_t tasks, TaskRef f) {
  const int workers = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (workers <= 1) {
    for (int64_t task = 0; task < tasks; ++task) f(task, 0);
    return;
  }
  require_threads(workers);
  Region region{f, tasks};
  release(&region.start);
  fork(workers, region);
  acquire(&region.end);
}

}  // namespace zg::cpu

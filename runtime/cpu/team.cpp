#include "runtime/cpu/team.h"

#include <omp.h>

#include <algorithm>
#include <atomic>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace zg::cpu {
namespace {

// libgomp is not instrumented, so ThreadSanitizer cannot see that a parallel region starts after
// what came before it and ends before what follows. These two edges tell it, and nothing else:
// a race between two tasks is still reported.
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

// OpenMP hands the region's address over in a place of its own, before any edge can be announced;
// this function holds nothing but that hand-over.
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread))
#endif
void fork(int workers, Region& region) {
#pragma omp parallel num_threads(workers)
  work(region, omp_get_thread_num());
}

}  // namespace

void team(int threads, int64_t tasks, TaskRef f) {
  const int workers = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (workers <= 1) {
    for (int64_t task = 0; task < tasks; ++task) f(task, 0);
    return;
  }
  Region region{f, tasks};
  release(&region.start);
  fork(workers, region);
  acquire(&region.end);
}

}  // namespace zg::cpu

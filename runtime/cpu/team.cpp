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

}  // namespace

void team(int threads, int64_t tasks, TaskRef f) {
  const int workers = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (workers <= 1) {
    for (int64_t task = 0; task < tasks; ++task) f(task, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  char start = 0, end = 0;
  release(&start);
#pragma omp parallel num_threads(workers)
  {
    acquire(&start);
    const int worker = omp_get_thread_num();
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      f(task, worker);
    release(&end);
  }
  acquire(&end);
}

}  // namespace zg::cpu

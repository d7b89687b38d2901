#pragma once

#include <cstdint>
#include <type_traits>

#include "zerograd/runtime/api.h"

namespace zg::cpu {

/// A borrowed callable: no allocation, valid for the duration of the call it is passed to.
class TaskRef {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, TaskRef>>>
  TaskRef(const F& f)  // NOLINT: implicit, so that a lambda can be passed
      : object_(&f), call_([](const void* object, int64_t task, int worker) {
          (*static_cast<const F*>(object))(task, worker);
        }) {}
  void operator()(int64_t task, int worker) const { call_(object_, task, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int);
};

/// Runs f(task, worker) for every task in [0, tasks), on up to `threads` threads. Any worker may
/// run any task, so a task's result must depend only on the task; then the bits are the same for
/// any thread count. `worker` is in [0, threads) and picks scratch memory. f must not throw. The
/// caller runs tasks too. It waits for the threads that began a task and for no others: where other
/// programs use the cores, the threads that have one do the work. Throws OutOfMemory if the system
/// refuses a thread.
ZG_API void team(int threads, int64_t tasks, TaskRef f);

/// The threads for kernels where the program sets none: the number in ZG_NUM_THREADS; else
/// OpenMP's, if OMP_NUM_THREADS or omp_set_num_threads() of the calling thread sets it; else
/// `share`. Throws ConfigError.
ZG_API int threads_or(int share);

/// Splits [0, n) into chunks of `grain` elements and runs f(begin, end) on each. `grain` must not
/// depend on the thread count.
template <class F>
void parallel_for(int threads, int64_t n, int64_t grain, const F& f) {
  const int64_t chunks = (n + grain - 1) / grain;
  team(threads, chunks, [&](int64_t chunk, int) {
    const int64_t begin = chunk * grain;
    f(begin, begin + grain < n ? begin + grain : n);
  });
}

}  // namespace zg::cpu

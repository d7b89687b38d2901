#include "zerograd/runtime/cpu/team.h"

#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void futex(std::atomic<int>& word, int operation, int value) {
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

/// Owners of teams and their helpers.
std::atomic<int> threads_of_teams{0};
std::atomic<int> forks{0};  // calls of fork() that led to this process

/// More threads than cores would spin on cores that others need.
bool spins() {
  static const int cores = available_cores();
  return threads_of_teams.load(std::memory_order_relaxed) <= cores;
}

/// Waits until done(): spins for a time that covers what usually separates two regions of a step,
/// then sleeps. A longer spin would take the cores from other programs and other ranks.
template <class Done, class Sleep>
void wait(microseconds spin, const Done& done, const Sleep& sleep) {
  if (done()) return;
  if (spins()) {
    const Clock::time_point end = Clock::now() + spin;
    do
      for (int i = 0; i < 32; ++i) {
        if (done()) return;
        relax();
      }
    while (Clock::now() < end);
  }
  while (!done()) sleep();
}

/// The threads of OpenMP before the program sets their number.
const int openmp_default = omp_get_max_threads();

constexpr microseconds between_regions{200}, between_tasks{100};

/// True on a thread that runs a task. A team inside a task runs on that thread alone.
thread_local bool in_task = false;

/// The helpers of one thread, the owner. A helper enters a region only while the region is open, so
/// the owner waits for the helpers that entered, and for none that the system keeps waiting.
class Pool {
 public:
  Pool() {
    ++threads_of_teams;
    [[maybe_unused]] static const int watched = pthread_atfork(nullptr, nullptr, [] {
      ++forks;
      threads_of_teams = 0;
    });
  }
  ~Pool() {
    forget_parent();
    threads_of_teams -= 1 + static_cast<int>(helpers_.size());
    stops_ = true;
    regions_.fetch_add(1);
    futex(regions_, FUTEX_WAKE_PRIVATE, INT_MAX);
    for (std::thread& helper : helpers_) helper.join();
  }

  void run(int workers, int64_t tasks, TaskRef f) {
    forget_parent();
    grow(workers);
    f_ = &f;
    tasks_ = tasks;
    workers_ = workers;
    for (int i = 0; i < workers; ++i)
      shares_[static_cast<size_t>(i)].next.store(tasks * i / workers, std::memory_order_relaxed);
    gate_.store(open, std::memory_order_release);
    regions_.fetch_add(1);
    // A helper that was woken and has no core yet is not woken again.
    if (asleep_.load() && asleep_.exchange(false)) futex(regions_, FUTEX_WAKE_PRIVATE, INT_MAX);
    work(0);
    gate_.fetch_sub(open, std::memory_order_acq_rel);
    wait(
        between_tasks, [&] { return gate_.load(std::memory_order_acquire) < one_inside; },
        [&] {
          const int gate = gate_.fetch_or(owner_sleeps) | owner_sleeps;
          if (gate >= one_inside) futex(gate_, FUTEX_WAIT_PRIVATE, gate);
        });
  }

 private:
  // gate_ is the sum of these, with one_inside for each helper that runs tasks
  static constexpr int open = 1, owner_sleeps = 2, one_inside = 4;

  /// After fork() the helpers exist in the parent only. The child can neither join nor detach them.
  void forget_parent() {
    if (forks_ == forks) return;
    forks_ = forks;
    for (std::thread& helper : helpers_) std::construct_at(&helper);
    helpers_.clear();
    ++threads_of_teams;
  }

  void grow(int workers) {
    if (shares_.size() < static_cast<size_t>(workers))
      shares_ = std::vector<Share>(static_cast<size_t>(workers));
    while (static_cast<int>(helpers_.size()) + 1 < workers) try {
        helpers_.emplace_back(&Pool::help, this, static_cast<int>(helpers_.size()) + 1);
        ++threads_of_teams;
      } catch (const std::system_error& error) {
        raise<OutOfMemory>(
            "threads: the system refused thread {} of {}: {}; expected memory for their stacks; "
            "try fewer threads, or a higher limit (`ulimit -v`, `ulimit -u`)",
            helpers_.size() + 2, workers, error.what());
      }
  }

  /// Runs the tasks of the worker's own share, then those left in other shares. If two regions
  /// divide a tensor alike, a worker finds its part of it in its core's cache.
  void work(int worker) {
    const TaskRef f = *f_;
    const int64_t tasks = tasks_;
    const int workers = workers_;
    in_task = true;
    for (int i = 0; i < workers; ++i) {
      const int owner = (worker + i) % workers;
      const int64_t end = tasks * (owner + 1) / workers;
      std::atomic<int64_t>& next = shares_[static_cast<size_t>(owner)].next;
      while (next.load(std::memory_order_relaxed) < end) {
        const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
        if (task >= end) break;
        f(task, worker);
      }
    }
    in_task = false;
  }

  bool enter() {
    int gate = gate_.load(std::memory_order_relaxed);
    while (gate & open)
      if (gate_.compare_exchange_weak(gate, gate + one_inside, std::memory_order_acquire))
        return true;
    return false;
  }

  void help(int worker) {
    for (int seen = 0; !stops_;) {
      wait(
          between_regions, [&] { return regions_.load(std::memory_order_acquire) != seen; },
          [&] {
            asleep_.store(true);
            futex(regions_, FUTEX_WAIT_PRIVATE, seen);  // returns at once if a region began
          });
      seen = regions_.load(std::memory_order_acquire);
      if (!enter()) continue;
      if (worker < workers_) work(worker);
      if (gate_.fetch_sub(one_inside, std::memory_order_acq_rel) == one_inside + owner_sleeps)
        futex(gate_, FUTEX_WAKE_PRIVATE, 1);
    }
  }

  // The current region; a helper reads these after it entered.
  const TaskRef* f_ = nullptr;
  int64_t tasks_ = 0;
  int workers_ = 0;
  /// The next task of a worker's share of the region's tasks, which are neighbours.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
  };
  std::vector<Share> shares_;
  alignas(64) std::atomic<int> gate_{0};
  alignas(64) std::atomic<int> regions_{0};  // regions begun
  std::atomic<bool> asleep_{false};          // a helper may sleep
  std::atomic<bool> stops_{false};
  int forks_ = forks;
  std::vector<std::thread> helpers_;
};

}  // namespace

void team(int threads, int64_t tasks, TaskRef f) {
  const int workers = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (workers <= 1 || in_task) {
    for (int64_t task = 0; task < tasks; ++task) f(task, 0);
    return;
  }
  static thread_local Pool pool;
  pool.run(workers, tasks, f);
}

int threads_or(int share) {
  constexpr int most = 4096;  // also the limit of --threads
  constexpr const char* own = "ZG_NUM_THREADS";
  if (const int threads = number_in_variable(own).value_or(0); threads > 0) {
    if (threads > most)
      raise<ConfigError>("{}: expected at most {} threads, got {}", own, most, threads);
    return threads;
  }
  const char* variable = std::getenv("OMP_NUM_THREADS");
  const int threads = omp_get_max_threads();
  return (variable && *variable) || threads != openmp_default ? threads : share;
}

}  // namespace zg::cpu

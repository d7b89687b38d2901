#include "zerograd/runtime/cuda/collective_gate.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <utility>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/cuda/api.h"

namespace zg::cuda {
namespace {

/// Either collectives run, or quiet calls are made.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0, quiet = 0;
};

Gate& gate() {
  static Gate& value = *new Gate;  // outlives devices that are destroyed at the end of the process
  return value;
}

thread_local int running_here = 0;

void enter(int Gate::*count, int Gate::*other) {
  std::unique_lock lock(gate().mutex);
  const auto is_open = [&] { return gate().*other == 0; };
  const std::function<void(bool)>& on_wait = on_wait_for_collectives();
  if (count == &Gate::quiet && !is_open() && on_wait) {
    lock.unlock();
    on_wait(true);
    lock.lock();
    gate().changed.wait(lock, is_open);
    ++(gate().*count);
    lock.unlock();
    on_wait(false);
    return;
  }
  gate().changed.wait(lock, is_open);
  ++(gate().*count);
}

void leave(int Gate::*count) {
  {
    const std::lock_guard lock(gate().mutex);
    --(gate().*count);
  }
  gate().changed.notify_all();
}

}  // namespace

RunningCollective::RunningCollective() {
  enter(&Gate::running, &Gate::quiet);
  ++running_here;
}

RunningCollective::~RunningCollective() {
  --running_here;
  leave(&Gate::running);
}

QuietProcess::QuietProcess() : counts_(running_here == 0) {
  if (counts_) enter(&Gate::quiet, &Gate::running);
}

QuietProcess::~QuietProcess() {
  if (counts_) leave(&Gate::quiet);
}

void load_kernel(const void* kernel, int index) {
  struct Loaded {
    std::shared_mutex mutex;
    std::set<std::pair<const void*, int>> kernels;  // with the device
  };
  static Loaded& loaded = *new Loaded;
  {
    const std::shared_lock lock(loaded.mutex);
    if (loaded.kernels.contains({kernel, index})) return;
  }
  const QuietProcess quiet;
  cudaFuncAttributes attributes;  // asking for them loads the kernel
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  const std::lock_guard lock(loaded.mutex);
  loaded.kernels.insert({kernel, index});
}

}  // namespace zg::cuda

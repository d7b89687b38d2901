#include "zerograd/runtime/cuda/collective_gate.h"

#include <condition_variable>
#include <mutex>

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
  gate().changed.wait(lock, [&] { return gate().*other == 0; });
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

}  // namespace zg::cuda

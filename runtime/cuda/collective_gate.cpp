#include "zerograd/runtime/cuda/collective_gate.h"

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/text/format.h"

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

size_t load_kernel(const void* kernel, int index, const char* op, int registers) {
  struct Loaded {
    std::shared_mutex mutex;
    std::map<std::pair<const void*, int>, size_t> kernels;  // with the device: bytes
  };
  static Loaded& loaded = *new Loaded;
  {
    const std::shared_lock lock(loaded.mutex);
    const auto found = loaded.kernels.find({kernel, index});
    if (found != loaded.kernels.end()) return found->second;
  }
  const QuietProcess quiet;
  cudaFuncAttributes attributes;  // asking for them loads the kernel
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  if (registers > 0 && attributes.numRegs != registers)
    raise<DeviceError>(
        "{}: its kernel was compiled to {} registers a thread; expected {}, which its warps divide "
        "anew (setmaxnreg) and would wait for without end; compile it for sm_90a with "
        "optimisation, by the nvcc that kernels/cuda/registers.md names",
        op, attributes.numRegs, registers);
  const std::lock_guard lock(loaded.mutex);
  loaded.kernels[{kernel, index}] = attributes.sharedSizeBytes;
  return attributes.sharedSizeBytes;
}

}  // namespace zg::cuda

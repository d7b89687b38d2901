#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cuda_runtime_api.h"

namespace zg::emulator {

/// A collective as a queue sees it. All ranks of the process that take part have the same key.
struct Collective {
  std::string key;
  std::shared_ptr<std::atomic<bool>> aborted;
};

struct Work {
  std::function<bool()> ready;  // null: at once
  std::function<void()> action;
  std::shared_ptr<const Collective> collective;  // null: a kernel or a copy
  uint64_t ticket = 0;
  std::thread::id launcher = {};
};

}  // namespace zg::emulator

/// Work in order. Any thread may run it, but only a thread that waits for the stream runs a
/// collective. Each stream has one of the hardware connections of its device, in turn. Work of
/// streams that share a connection is done in the order in which it was queued.
struct EmulatedStream {
  int device = 0;
  std::deque<zg::emulator::Work> work;
  std::deque<std::pair<uint64_t, EmulatedStream*>>* connection = nullptr;
  bool busy = false;    // a thread runs the first of `work`
  uint64_t newest = 0;  // ticket of the last work that was queued
};

namespace zg::emulator {

/// ZG_EMULATOR_SEED. 0 or unset: queued work runs as late as possible, when a caller waits for it,
/// and pageable memory is read at the call. Otherwise work of any stream may run at any call of the
/// runtime, in an order that the seed shuffles, and pageable memory is read and written late.
uint64_t queue_seed();

EmulatedStream* make_stream(int device);
void destroy_stream(EmulatedStream* stream);
void queue(EmulatedStream* stream, Work work);
/// Runs what can run now. True: all work up to `ticket` is done.
bool advance(EmulatedStream& stream, uint64_t ticket);
void drain(EmulatedStream& stream, uint64_t ticket);
uint64_t newest_ticket(EmulatedStream& stream);

inline constexpr int every_device = -1;

/// A driver call that waits until a device, or each of this process, runs no collective, and keeps
/// the launches of collectives waiting until it ends: the most that a driver may do. If the calling
/// thread itself has launched such a collective, the call dies: other ranks may not have launched
/// theirs.
class SerialisedCall {
 public:
  explicit SerialisedCall(const char* name, int device = every_device);
  ~SerialisedCall();
  SerialisedCall(const SerialisedCall&) = delete;
  SerialisedCall& operator=(const SerialisedCall&) = delete;
};
/// The number of serialised calls that wait for a collective at the moment.
int waiting_calls();

/// Makes device memory accessible while it exists.
class Access {
 public:
  Access();
  ~Access();
};

}  // namespace zg::emulator

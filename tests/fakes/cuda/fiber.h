#pragma once

#include <cstddef>
#include <vector>

namespace zg::emulator {

/// A stack of its own that runs by turns with others on one thread of the system. Sanitizers are
/// told of every switch; ThreadSanitizer takes no switch for synchronisation.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next switch to it begins `entry` on an empty stack; entry must not return.
  void prepare(void (*entry)());
  /// Leaves the running fiber (null: the thread's own stack) for another one.
  static void change(Fiber* from, Fiber* to, bool from_is_done);
  /// The first thing that `entry` has to do.
  static void entered();

 private:
  std::byte* stack_ = nullptr;  // above a guard page
  void* top_ = nullptr;         // saved stack pointer
  void* thread_sanitizer_ = nullptr;
};

/// Orders what happened before release(place) with what follows acquire(place), as
/// ThreadSanitizer sees it; nothing elsewhere.
void release(void* place);
void acquire(void* place);

/// While it exists, ThreadSanitizer does not watch this fiber: for the emulator's own books, which
/// fibers share without being threads. No switch may fall between.
class Unwatched {
 public:
  Unwatched();
  ~Unwatched();
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace zg::emulator

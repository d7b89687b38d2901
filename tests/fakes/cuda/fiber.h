#pragma once

#include <cstddef>

namespace zg::emulator {

/// A fiber: code with its own stack; several take turns on one system thread. Sanitizers are told
/// of every switch. ThreadSanitizer does not count a switch as synchronisation.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the next switch to this fiber start `entry` on an empty stack. `entry` must not return.
  void prepare(void (*entry)());
  /// Switches from the running fiber to another one; null is the system thread's own stack.
  static void change(Fiber* from, Fiber* to, bool from_is_done);
  /// Must be the first call in `entry`.
  static void entered();

 private:
  std::byte* stack_ = nullptr;  // above a guard page
  void* top_ = nullptr;         // saved stack pointer
  void* thread_sanitizer_ = nullptr;
};

/// For ThreadSanitizer: what happened before release(place) is ordered before what follows
/// acquire(place). Without ThreadSanitizer they do nothing.
void release(void* place);
void acquire(void* place);

/// While an object of this class exists, ThreadSanitizer ignores this fiber's memory accesses: for
/// data of the emulator itself, which fibers share safely because they run on one thread. No switch
/// is allowed during its lifetime.
class TsanIgnored {
 public:
  TsanIgnored();
  ~TsanIgnored();
  TsanIgnored(const TsanIgnored&) = delete;
  TsanIgnored& operator=(const TsanIgnored&) = delete;
};

}  // namespace zg::emulator

#include "tests/fakes/cuda/fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef ZG_EMULATOR_TSAN  // this file itself is compiled without -fsanitize=thread
#include <sanitizer/tsan_interface.h>

// Functions of the ThreadSanitizer runtime that no header declares.
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif
#ifndef __x86_64__
#error "fiber: the switch is written for x86-64; add one for this processor"
#endif

extern "C" void zg_emulator_switch(void** save, void* to);
asm(R"(
.text
.p2align 4
.globl zg_emulator_switch
.type zg_emulator_switch,@function
zg_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size zg_emulator_switch,.-zg_emulator_switch
)");

namespace zg::emulator {
namespace {

constexpr size_t guard = 4096;
#if defined(__SANITIZE_ADDRESS__) || defined(ZG_EMULATOR_TSAN)
constexpr size_t stack_bytes = 256 << 10;
#else
constexpr size_t stack_bytes = 128 << 10;
#endif

/// The thread's own stack, saved while a fiber runs.
struct Outside {
  void* top = nullptr;
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* thread_sanitizer = nullptr;
};
thread_local Outside outside;

/// The resources of a fiber.
struct Parts {
  std::byte* stack = nullptr;
  void* thread_sanitizer = nullptr;
};

/// A pool of unused resources: allocating them takes longer than running a small block.
class Spares {
 public:
  ~Spares() {
    for (const Parts& parts : all_) {
#ifdef ZG_EMULATOR_TSAN
      __tsan_destroy_fiber(parts.thread_sanitizer);
#endif
      munmap(parts.stack - guard, stack_bytes + guard);
    }
  }
  Parts take() {
    const std::lock_guard lock(mutex_);
    if (all_.empty()) return {};
    const Parts parts = all_.back();
    all_.pop_back();
    return parts;
  }
  void give(const Parts& parts) {
    const std::lock_guard lock(mutex_);
    all_.push_back(parts);
  }

 private:
  std::mutex mutex_;
  std::vector<Parts> all_;
};

Spares& spares() {
#ifdef ZG_EMULATOR_TSAN
  // TSan keeps the history of a fiber. If another thread reused it, a race between them could be
  // hidden.
  static thread_local Spares spare;
  return spare;
#else
  static Spares* const spare = new Spares;  // devices may outlive other statics
  return *spare;
#endif
}

std::byte* map_stack() {
  void* memory = mmap(nullptr, stack_bytes + guard, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0) {
    std::perror("emulator: no memory for a stack");
    std::abort();
  }
  return static_cast<std::byte*>(memory) + guard;
}

}  // namespace

Fiber::Fiber() {
  const Parts spare = spares().take();
  stack_ = spare.stack ? spare.stack : map_stack();
  thread_sanitizer_ = spare.thread_sanitizer;
#ifdef ZG_EMULATOR_TSAN
  if (!thread_sanitizer_) thread_sanitizer_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() { spares().give({stack_, thread_sanitizer_}); }

void Fiber::prepare(void (*entry)()) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(stack_, stack_bytes);
#endif
  constexpr int saved_registers = 6;
  void** top = reinterpret_cast<void**>(stack_ + stack_bytes);
  *--top = nullptr;  // where a return address would be: entry starts aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < saved_registers; ++i) *--top = nullptr;
  top_ = top;
}

void Fiber::change(Fiber* from, Fiber* to, bool from_is_done) {
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(from_is_done ? nullptr : &fake_stack,
                                 to ? static_cast<const void*>(to->stack_) : outside.bottom,
                                 to ? stack_bytes : outside.bytes);
#endif
  (void)from_is_done;
#ifdef ZG_EMULATOR_TSAN
  if (!from) outside.thread_sanitizer = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to ? to->thread_sanitizer_ : outside.thread_sanitizer,
                         __tsan_switch_to_fiber_no_sync);
#endif
  zg_emulator_switch(from ? &from->top_ : &outside.top, to ? to->top_ : outside.top);
#ifdef __SANITIZE_ADDRESS__
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
#endif
}

void Fiber::entered() {
#ifdef __SANITIZE_ADDRESS__
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!outside.bottom) {
    outside.bottom = bottom;
    outside.bytes = bytes;
  }
#endif
}

void release(void* place) {
#ifdef ZG_EMULATOR_TSAN
  __tsan_release(place);
#endif
  (void)place;
}

void acquire(void* place) {
#ifdef ZG_EMULATOR_TSAN
  __tsan_acquire(place);
#endif
  (void)place;
}

TsanIgnored::TsanIgnored() {
#ifdef ZG_EMULATOR_TSAN
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
}

TsanIgnored::~TsanIgnored() {
#ifdef ZG_EMULATOR_TSAN
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
}

}  // namespace zg::emulator

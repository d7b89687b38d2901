// The connection between the library, which is linked into each module, and the driver that runs
// the module. One copy of a module runs on one system thread at a time, so plain globals are
// sufficient.
#include "item.h"

// The compiler must neither inline nor duplicate a hook: the driver tells two barriers of a kernel
// apart by the return addresses of the hook's calls. It must not optimise a hook (optnone): an
// optimised hook would lose the attribute `convergent`, because LLVM does not know that the
// function it calls is convergent.
#define ZG_HOOK extern "C" __attribute__((noinline, optnone, convergent))

extern "C" {
/// Set by the driver: the current work-item, and the driver's functions.
__attribute__((visibility("default"))) zg_item* zg_item = nullptr;
__attribute__((visibility("default"))) struct {
  void (*barrier)(const void* place);
  const void* (*meet)(const void* value, unsigned bytes, const char* operation, const void* place);
  void (*fault)(const char* words);
} zg_hooks = {};
}

ZG_HOOK void zg_barrier() { zg_hooks.barrier(__builtin_return_address(0)); }

/// Waits for all lanes of the sub-group, each of which passes its `value`. Returns the address of
/// lane 0's value; base.clh says where the others are. Errors name the operation `operation`.
ZG_HOOK const void* zg_meet(const void* value, unsigned bytes, const char* operation) {
  return zg_hooks.meet(value, bytes, operation, __builtin_return_address(0));
}

ZG_HOOK void zg_fault(const char* words) { zg_hooks.fault(words); }

/// Fills a local array with NaN. The functions that host_text.cpp generates call it before a
/// work-group runs.
extern "C" void zg_poison(char* begin, unsigned long bytes) {
  __builtin_memset(begin, 0xff, bytes);
}

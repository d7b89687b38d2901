// The connection between the library, which is linked into each module, and the driver that runs
// the module. One copy of a module runs on one system thread at a time, so plain globals are
// sufficient.
#include "item.h"

// Neither inlined nor duplicated: the address of the call distinguishes barriers. Not optimised:
// otherwise it would lose the attribute `convergent`, because it calls no function that LLVM knows
// to be convergent.
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

ZG_HOOK const void* zg_meet(const void* value, unsigned bytes, const char* operation) {
  return zg_hooks.meet(value, bytes, operation, __builtin_return_address(0));
}

ZG_HOOK void zg_fault(const char* words) { zg_hooks.fault(words); }

extern "C" void zg_poison(char* begin, unsigned long bytes) {
  __builtin_memset(begin, 0xff, bytes);
}

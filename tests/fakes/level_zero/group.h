#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/fakes/level_zero/library/item.h"

namespace zg::test_driver {

using Extent = std::array<uint32_t, 3>;

/// A kernel in one copy of its module, with its arguments.
struct Work {
  const char* kernel;
  bool meets;            ///< work-items may wait for each other: each gets a fiber
  void (*item)(void**);  ///< runs one work-item
  void (*row)(void**);   ///< runs all work-items that differ only in local_id[0]
  void (*poison)();      ///< fills the kernel's local arrays with NaN
  zg_item** running;     ///< the module's pointer to the current work-item
  void** arguments;
  std::array<void*, 2> dynamic_local;  ///< begin and end of local memory from arguments
  Extent groups, local;
  unsigned sub_group;  ///< maximum number of lanes of a sub-group
  uint64_t seed;       ///< 0: groups and work-items start in order
};

/// Runs the groups [first, last) of the launch on this thread. Returns an error message, or "".
std::string run_groups(const Work& work, uint64_t first, uint64_t last);

/// Functions that a module calls. library/hooks.cpp declares the same type as zg_hooks.
struct Hooks {
  void (*barrier)(const void* place);
  const void* (*meet)(const void* value, unsigned bytes, const char* operation, const void* place);
  void (*fault)(const char* words);
};
extern const Hooks hooks;

}  // namespace zg::test_driver

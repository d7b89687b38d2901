#include "tests/fakes/level_zero/state.h"

#include <cstdio>

#include "tests/fakes/cuda/fiber.h"
#include "tests/fakes/level_zero/settings.h"

namespace zg::test_driver {

State& state() {
  static State* const all = [] {
    State* const made = new State;
    for (int i = 0; i < settings().devices; ++i) {
      made->devices.push_back(std::make_unique<Device>());
      made->devices.back()->index = i;
      std::snprintf(made->devices.back()->name, sizeof Device::name, "device %d", i);
    }
    explain_faults(made->memory);
    // Creates the shared list of fiber stacks here, where ThreadSanitizer sees the creation. The
    // sources of fibers are compiled without ThreadSanitizer.
    const emulator::Fiber first;
    return made;
  }();
  return *all;
}

}  // namespace zg::test_driver

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/fakes/level_zero/objects.h"

namespace zg::test_driver {

/// Limits of a group: work-items, and bytes of local memory.
inline constexpr uint64_t most_items = 1024;
inline constexpr size_t local_memory = 64 << 10;

/// A kernel launch with a copy of the arguments that were set when it was appended.
struct Launch {
  std::shared_ptr<const Program> program;
  KernelSignature signature;
  std::vector<ArgumentValue> arguments;
  Extent group{}, groups{};
};

/// Runs the launch on as many threads as there are copies of its module. Returns an error message,
/// or "".
std::string run(const Launch& launch);

}  // namespace zg::test_driver

#pragma once

#include <memory>
#include <string>

#include "tests/fakes/level_zero/objects.h"

namespace zg::test_driver {

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

#pragma once

#include <memory>
#include <string>

#include "tests/fakes/level_zero/objects.h"

namespace zg::test_driver {

/// A kernel as it was when it was appended: arguments and all.
struct Launch {
  std::shared_ptr<const Program> program;
  KernelSignature signature;
  std::vector<ArgumentValue> arguments;
  Extent group{}, groups{};
};

/// Runs it on as many threads as there are copies of its module. What went wrong, or nothing.
std::string run(const Launch& launch);

}  // namespace zg::test_driver

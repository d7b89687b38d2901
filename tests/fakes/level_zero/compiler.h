#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/fakes/level_zero/spirv.h"

namespace zg::test_driver {

/// Files of a shared library each, equal but for their names, that hold the module as code of the
/// host. They stay in a folder (settings().cache) by a hash of all they were made from: a module is
/// compiled once, whatever number of processes ask for it. Throws std::runtime_error.
std::vector<std::string> compiled_copies(std::span<const std::byte> spirv,
                                         const std::vector<KernelSignature>& kernels,
                                         unsigned copies);

}  // namespace zg::test_driver

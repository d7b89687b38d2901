#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/fakes/level_zero/spirv.h"

namespace zg::test_driver {

/// Compiles a module to machine code of the host, as `copies` equal shared libraries, and returns
/// their paths. They are cached in a folder (settings().cache) under a hash of everything that they
/// depend on, so a module is compiled once for any number of processes. Throws std::runtime_error.
std::vector<std::string> compiled_copies(std::span<const std::byte> spirv,
                                         const std::vector<KernelSignature>& kernels, bool rounded,
                                         unsigned copies);

}  // namespace zg::test_driver

#pragma once

#include <string>

#include "zerograd/runtime/device.h"

namespace zg::testing {

/// The type of device that a test binary runs on. Tests of kernels and accelerators are compiled
/// once and linked into several binaries. tests/main.cpp defines it as the CPU,
/// tests/accelerator/main.cpp as CUDA or HPU.
extern const Device::Type tested_type;

inline std::string tested_name() { return name_of(tested_type); }

}  // namespace zg::testing

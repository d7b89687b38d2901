#pragma once

#include <string>

#include "zerograd/runtime/device.h"

// The type of accelerator that a test binary is built for: CUDA on the emulator, or HPU on the test
// driver. The tests of this folder are built once for each.
namespace zg::testing {

#ifdef ZG_TEST_HPU
inline constexpr Device::Type accelerator = Device::Type::hpu;
inline const std::string accelerator_name = "hpu";
#else
inline constexpr Device::Type accelerator = Device::Type::cuda;
inline const std::string accelerator_name = "cuda";
#endif

}  // namespace zg::testing

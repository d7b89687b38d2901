#pragma once

#include <string>

#include "zerograd/runtime/device.h"

// The kind of accelerator that a binary of tests is for: CUDA on the emulator, or HPU on the test
// driver. What is in this folder is built for each.
namespace zg::testing {

#ifdef ZG_TEST_HPU
inline constexpr Device::Type accelerator = Device::Type::hpu;
inline const std::string accelerator_name = "hpu";
#else
inline constexpr Device::Type accelerator = Device::Type::cuda;
inline const std::string accelerator_name = "cuda";
#endif

}  // namespace zg::testing

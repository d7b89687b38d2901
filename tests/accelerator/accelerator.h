#pragma once

#include <memory>
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

#ifdef ZG_TEST_GPU
/// For exact_memory (tests/kernels/guarded_call.h): an allocation of the CUDA runtime.
std::shared_ptr<void> cuda_memory(const Device& device, size_t bytes);
#endif

}  // namespace zg::testing

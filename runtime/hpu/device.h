#pragma once

#include <memory>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/hpu/api.h"
#include "zerograd/runtime/hpu/module.h"

namespace zg::hpu {

ze_device_handle_t handle_of(int index);
/// True if the kernels of one device can access the memory of another.
bool reaches(int index, int other);

/// The owner of an address: the index of the device whose memory it is, or one of these.
inline constexpr int pinned_memory = -1;   ///< memory of the process that devices can access
inline constexpr int process_memory = -2;  ///< other memory of the process
int place_of(const void* address);

/// Built at the first call. Any thread may call.
ze_module_handle_t module_of(int index, const Code& code);

std::unique_ptr<ArenaMemory> make_memory(int index, Space space);
std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name);

}  // namespace zg::hpu

#pragma once

#include <memory>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/hpu/api.h"
#include "zerograd/runtime/hpu/module.h"

namespace zg::hpu {

ze_device_handle_t handle_of(int index);
/// Whether the kernels of one device reach the memory of another.
bool reaches(int index, int other);

/// Where an address lies: the index of the device whose memory it is, or one of these.
inline constexpr int pinned_memory = -1;   ///< the process's, that devices reach
inline constexpr int process_memory = -2;  ///< the process's own
int place_of(const void* address);

/// Built at the first call. Any thread may call.
ze_module_handle_t module_of(int index, const Code& code);

std::unique_ptr<ArenaMemory> make_memory(int index, Space space);
std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name);

}  // namespace zg::hpu

#pragma once

#include <memory>

#include "runtime/backend.h"
#include "runtime/hpu/api.h"
#include "runtime/hpu/module.h"

namespace zg::hpu {

ze_device_handle_t handle_of(int index);
/// Whether an address is memory of some device; else it is the process's own.
bool on_device(const void* address);

/// Built at the first call. Any thread may call.
ze_module_handle_t module_of(int index, const Code& code);

std::unique_ptr<ArenaMemory> make_memory(int index, Space space);
std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name);

}  // namespace zg::hpu

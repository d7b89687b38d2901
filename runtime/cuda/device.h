#pragma once

#include <memory>

#include "zerograd/runtime/backend.h"

namespace zg::cuda {

bool reaches(int index, int other);
std::unique_ptr<ArenaMemory> make_memory(int index, Space space);
std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name);

}  // namespace zg::cuda

#pragma once

#include <memory>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/hpu/api.h"

namespace zg::hpu {

/// Whether kernels of device `index` can access the memory of device `other`.
bool reaches(int index, int other);

/// The memory that an address belongs to: the index of a device, or one of these.
inline constexpr int pinned_memory = -1;   ///< host memory that copies can access, not kernels
inline constexpr int process_memory = -2;  ///< host memory that no device can access
struct Position {
  int memory = process_memory;
  size_t bytes = SIZE_MAX;  ///< that one copy may access from the address on
};
Position position_of(const void* address);
inline int memory_of(const void* address) { return position_of(address).memory; }

std::unique_ptr<ArenaMemory> make_memory(int index, Space space);
std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name);
// See Backend.
std::shared_ptr<const std::vector<std::byte>> fetch(Stream& stream, const void* from, size_t bytes);
std::unique_ptr<StreamMark> mark(Stream& stream);
bool is_idle(Stream& stream);

}  // namespace zg::hpu

#pragma once

#include <cstddef>
#include <memory>

#include "zerograd/runtime/backend.h"

namespace zg::cuda {

/// The memory of an arena: Space::pinned, or Space::device of the index-th device.
std::unique_ptr<ArenaMemory> make_memory(int index, Space space);

/// True if kernels and copies of one device can access the memory of another.
bool reaches(int index, int other);

/// The bytes from `place` to the end of the registration of pinned memory that holds it. If none
/// does: all of `bytes`. A copy must not span two registrations.
size_t bytes_in_one_registration(const void* place, size_t bytes);

/// True for ordinary memory of the process: neither a device's nor pinned.
bool is_pageable(const void* place);

}  // namespace zg::cuda

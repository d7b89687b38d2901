#pragma once

#include <cstdint>
#include <span>

#include "zerograd/runtime/device.h"

namespace zg::hpu {

/// A SPIR-V module. Its bytes exist as long as the process.
struct Code {
  const char* name = nullptr;  ///< "layer_norm.bf16": its name in errors
  std::span<const unsigned char> spirv;
  /// The programs that were missing when a program's own module was built; it is then empty.
  const char* missing = nullptr;
};

/// One argument of a kernel. If `value` is null, it is a pointer that is null, or local memory of
/// the work-group, of this size.
struct Argument {
  size_t bytes = 0;
  const void* value = nullptr;
};

struct Groups {
  int64_t x = 1, y = 1, z = 1;
};

/// Throws Unsupported in a build without Level Zero, and for an empty module. Queues the kernel
/// over `groups` work-groups of the size that it requires. The code is built once for each device.
/// NativeCache keeps the built binary on disk; it is built again if the file cannot be used.
ZG_API void enqueue(Stream& stream, const Code& code, const char* kernel, const Groups& groups,
                    std::span<const Argument> arguments);

/// The address of the fault record that the stream's kernels write (kernels/hpu/tile.clh): six
/// longs in device memory. The next synchronize() reads it and throws the error.
ZG_API void* fault_place(Stream& stream);

}  // namespace zg::hpu

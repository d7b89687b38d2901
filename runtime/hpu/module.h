#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/device.h"

namespace zg::hpu {

/// The device properties that decide which kernels are used. They are the same for every process
/// that sees the device.
struct Features {
  std::vector<int> sub_groups;  ///< sub-group sizes that the device supports
  bool rounded_divide_sqrt =
      false;  ///< correctly rounded (IEEE 754): AdamW then gives the bits of the CPU
  int64_t memory_bytes = 0;
  int64_t local_bytes = 0;  ///< shared local memory of one work-group
};
const Features& features_of(int index);

/// A SPIR-V module. Its bytes exist as long as the process.
struct Code {
  const char* name = nullptr;  ///< "layer_norm.bf16": its name in errors
  std::span<const unsigned char> spirv;
  /// The programs that were missing when a program's own module was built; it is then empty.
  const char* missing = nullptr;
};

/// One argument of a kernel. Without a value: local memory of the work-group, of that size.
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
void* fault_place(Stream& stream);

/// A cache on disk of the native binaries that a device's driver built from modules. A file's name
/// is a hash of the SPIR-V, the device, the driver and the build options. If a file cannot be read
/// or written, the module is built again; so nothing here throws.
class NativeCache {
 public:
  /// The folder is ZG_HPU_CACHE, else XDG_CACHE_HOME/zerograd, else ~/.cache/zerograd.
  NativeCache();

  /// Returns an empty vector if there is no file for the key, or if it is damaged.
  std::vector<uint8_t> find(const std::string& key) const noexcept;
  void keep(const std::string& key, const std::vector<uint8_t>& binary) const noexcept;

 private:
  std::string folder_;  // empty: none
};

}  // namespace zg::hpu

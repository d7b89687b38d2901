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
  std::vector<int> sub_groups;       ///< work-items that the device runs in step
  bool rounded_divide_sqrt = false;  ///< as in IEEE 754: AdamW then gives the bits of the CPU
  int64_t memory_bytes = 0;
  int64_t local_bytes = 0;  ///< shared local memory of one work-group
};
const Features& features_of(int index);

/// Kernels as SPIR-V, in storage that lasts as long as the process.
struct Code {
  const char* name = nullptr;  ///< "layer_norm.bf16": its name in errors
  std::span<const unsigned char> spirv;
};

/// One argument of a kernel; without a value, memory of the work-group.
struct Argument {
  size_t bytes = 0;
  const void* value = nullptr;
};

struct Groups {
  int64_t x = 1, y = 1, z = 1;
};

/// Queues the kernel over `groups` work-groups of the size that it requires. The code is built once
/// for each device. The built code is cached on disk (ZG_HPU_CACHE, or .cache/zerograd of the home
/// folder) and built again if the cached file cannot be used.
void enqueue(Stream& stream, const Code& code, const char* kernel, const Groups& groups,
             std::span<const Argument> arguments);

/// Where kernels of the stream report faults: six longs of the device's memory
/// (kernels/hpu/tile.clh), read by the next synchronize().
void* fault_place(Stream& stream);

/// A cache of built kernels on disk: a folder of files. A file's name is a hash of the source, the
/// device, the driver and the options. After any error the kernels are built again, so nothing here
/// throws.
class NativeCache {
 public:
  NativeCache();  ///< ZG_HPU_CACHE, else zerograd below XDG_CACHE_HOME or .cache of the home folder

  /// Empty if there is no such file or it is damaged.
  std::vector<uint8_t> find(const std::string& key) const noexcept;
  void keep(const std::string& key, const std::vector<uint8_t>& binary) const noexcept;

 private:
  std::string folder_;  // empty: none
};

}  // namespace zg::hpu

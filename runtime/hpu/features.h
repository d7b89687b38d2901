#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zg::hpu {

/// The device properties that decide which kernels are used. They are the same for every process
/// that sees the device.
struct Features {
  std::vector<int> sub_groups;  ///< sub-group sizes that the device supports
  bool rounded_divide_sqrt =
      false;  ///< correctly rounded (IEEE 754): AdamW then gives the bits of the CPU
  bool may_have_dpas = true;  ///< false: the driver says that there is none
  int64_t memory_bytes = 0;
  int64_t local_bytes = 0;  ///< shared local memory of one work-group
};
const Features& features_of(int index);

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

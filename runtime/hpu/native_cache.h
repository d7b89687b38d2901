#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zg::hpu {

/// Kernels as a device's driver has built them, on disk: a folder of files named by what they were
/// built from, for which device and driver, and how. Whatever goes wrong with it, the kernels are
/// built again; so nothing here throws.
class NativeCache {
 public:
  NativeCache();  ///< ZG_HPU_CACHE, else zerograd below XDG_CACHE_HOME or .cache of the home folder

  /// Empty where there is none, or it is damaged.
  std::vector<uint8_t> find(const std::string& key) const noexcept;
  void keep(const std::string& key, const std::vector<uint8_t>& binary) const noexcept;

 private:
  std::string folder_;  // empty: none
};

}  // namespace zg::hpu

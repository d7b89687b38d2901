#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

namespace zg::bench {

/// Measures the operations that offloading repeats: transfers between disk and memory, AdamW on
/// states in memory or on the disk, and both at once. On an accelerator it measures copies to and
/// from pinned memory and AdamW without a disk.
struct OffloadOptions {
  int64_t bytes =
      256 << 20;  ///< size of one transfer, and of the master weights that AdamW updates
  Device::Type type = Device::Type::cpu;
  DeviceOptions device;  ///< threads, the directory on the disk and its requests
};

/// Highest measured rates in bytes per second: the best run of each.
struct OffloadLimits {
  double memory = 0.0;             ///< measure_memory_bandwidth(), cpu only
  double read = 0.0, write = 0.0;  ///< sequential disk rates of the faster engine
};

struct OffloadRow {
  std::string name;   ///< "swap read"
  std::string shape;  ///< "256 MiB", "67108864"
  DType dtype;
  std::vector<double> seconds;  ///< one value for each run, sorted
  double bytes;                 ///< that one run moves to or from the disk, or in memory
  double limit_s;  ///< time for `bytes` at the measured limits; 0: the row is itself a limit, or no
                   ///< limit was measured

  double quantile(double q) const;
};

struct OffloadResult {
  std::string disk;  ///< "io_uring past the page cache"
  OffloadLimits limits;
  std::vector<OffloadRow> rows;  ///< those of the limits first
  /// (compute alone + disk alone - both) / the shorter of the two, by the fastest run of each. 1:
  /// the shorter one is hidden completely. Below 0: together they are slower than one after the
  /// other.
  std::optional<double> overlap;
};

/// `wanted` receives "name dtype" and returns whether to measure the row. Limits are always
/// measured, and so is the row that the states on the disk are compared with. Takes 5 times
/// options.bytes of memory and 4 times of disk space, in files without names that leave nothing
/// behind. FileError when the directory does not exist or has too little space.
OffloadResult measure_offload(const OffloadOptions& options,
                              const std::function<bool(const std::string&)>& wanted);

}  // namespace zg::bench

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

namespace zg::bench {

/// What a run that offloads does all the time: a drive's bytes to memory and back, AdamW where its
/// states are, and both at once. Of an accelerator the copies to and from pinned memory instead,
/// and AdamW without a drive.
struct OffloadOptions {
  int64_t bytes = 256 << 20;  ///< of one transfer, and of the masters that AdamW updates
  Device::Type type = Device::Type::cpu;
  DeviceOptions device;  ///< threads, the drive's directory and requests
};

/// Bytes a second that this machine reaches at most: the best run of each.
struct OffloadLimits {
  double memory = 0.0;             ///< measure_memory_bandwidth(), of the cpu
  double read = 0.0, write = 0.0;  ///< of the drive, in sequence, by the better engine
};

struct OffloadRow {
  std::string name;   ///< "swap read"
  std::string shape;  ///< "256 MiB", "67108864"
  DType dtype;
  std::vector<double> seconds;  ///< of one run, sorted
  double bytes;                 ///< that one run moves to or from the drive, or in memory
  double limit_s;               ///< what those take at the limits; 0: the row is a limit, or
                                ///< nothing measures one

  double quantile(double q) const;
};

struct OffloadResult {
  std::string drive;  ///< "io_uring past the page cache"
  OffloadLimits limits;
  std::vector<OffloadRow> rows;  ///< those of the limits first
  /// (compute alone + drive alone - both) / the shorter of the two, by the fastest run of each: 1
  /// where it is hidden, below 0 where they are slower beside each other.
  std::optional<double> overlap;
};

/// `wanted` says of each row, by "name dtype", whether it is measured; limits always are, and what
/// the states on the drive are compared with. Takes 5 times options.bytes of memory and 4 times of
/// the drive, whose files have no names: nothing stays. FileError: the directory is none, or has no
/// room.
OffloadResult measure_offload(const OffloadOptions& options,
                              const std::function<bool(const std::string&)>& wanted);

}  // namespace zg::bench

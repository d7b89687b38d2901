#pragma once

#include <cstdint>

namespace zg::cpu {

/// Identifies a process by its number and start time, because Linux reuses numbers. Plain data, so
/// that it can be sent.
struct ProcessId {
  char host[64] = {};
  int64_t pid = 0;
  uint64_t start = 0;  ///< in clock ticks since the host started

  static ProcessId own();
  bool same_host(const ProcessId& other) const;
  /// True if the process exists, running or stopped; false for a zombie. Only processes of this
  /// host and container can be seen.
  bool alive() const;
};

}  // namespace zg::cpu

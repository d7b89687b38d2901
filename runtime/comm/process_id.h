#pragma once

#include <cstdint>

namespace zg::cpu {

/// A process by name: its number alone may come again. Plain data, so that it can be sent.
struct ProcessId {
  char host[64] = {};
  int64_t pid = 0;
  uint64_t start = 0;  ///< in clock ticks since the host started

  static ProcessId own();
  bool same_host(const ProcessId& other) const;
  /// Whether it runs or is stopped; a zombie does not. Only processes of this host can be seen, and
  /// not those of another container.
  bool alive() const;
};

}  // namespace zg::cpu

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg {

ZG_API int64_t physical_memory_bytes();
ZG_API int64_t available_memory_bytes();  ///< memory that Linux could hand out now without swapping

/// The limit for all processes together: physical memory plus swap, or a smaller limit of a control
/// group.
ZG_API int64_t memory_limit_bytes();

/// Bytes of address space that this process may still map under `ulimit -v`. INT64_MAX: no limit.
ZG_API int64_t addresses_left_bytes();
ZG_API int64_t thread_stack_bytes();  ///< bytes of address space that each new thread takes

/// Cores that a process of this machine may use: those of its affinity mask, and at most as many as
/// the CPU quota of this process's control group is worth, rounded up. 0: there is no such process.
/// `process` 0: this process. `control_groups`: the folder with the quota, of version 2 or 1.
ZG_API int cores_of(int process, const std::string& control_groups = "/sys/fs/cgroup");

/// How many threads this process may have: the smallest of the system's limits.
ZG_API int64_t thread_limit();

/// The number of 0 or more in an environment variable, which ends at one of the characters of
/// `ends` or at the end of the text; absent: the variable is not set. Throws ConfigError.
ZG_API std::optional<int> number_in_variable(const char* variable, const char* ends = "");

}  // namespace zg

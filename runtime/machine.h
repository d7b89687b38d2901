#pragma once

#include <cstdint>

#include "zerograd/runtime/api.h"

namespace zg {

ZG_API int64_t physical_memory_bytes();
ZG_API int64_t available_memory_bytes();  ///< memory that Linux could hand out now without swapping

/// The limit of all ranks together: physical memory and swap, or less if a control group sets a
/// smaller limit.
ZG_API int64_t memory_limit_bytes();

/// Addresses that `ulimit -v` still lets this process map; INT64_MAX: it sets no limit.
ZG_API int64_t addresses_left_bytes();
ZG_API int64_t thread_stack_bytes();  ///< addresses that each new thread takes

/// How many threads the system lets this process have, by the tightest of its limits.
ZG_API int64_t thread_limit();

}  // namespace zg

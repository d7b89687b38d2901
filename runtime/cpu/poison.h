#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ZG_POISON
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ZG_POISON
#endif
#ifdef ZG_POISON
#include <sanitizer/asan_interface.h>
#endif

namespace zg {

/// In a build with AddressSanitizer an access to these bytes is reported. Other builds do nothing.
/// The arena is one mapping, so without this the sanitizer cannot tell tensors and free memory
/// apart.
inline void poison([[maybe_unused]] const std::byte* data, [[maybe_unused]] int64_t bytes) {
#ifdef ZG_POISON
  if (data) __asan_poison_memory_region(data, static_cast<size_t>(bytes));
#endif
}
inline void unpoison([[maybe_unused]] const std::byte* data, [[maybe_unused]] int64_t bytes) {
#ifdef ZG_POISON
  if (data) __asan_unpoison_memory_region(data, static_cast<size_t>(bytes));
#endif
}

}  // namespace zg

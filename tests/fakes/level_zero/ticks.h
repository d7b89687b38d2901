#pragma once

#include <cstdint>

namespace zg::test_driver {

/// The devices' clock, as inconvenient as real ones: a tick is not one nanosecond, the counter has
/// fewer bits than its type, and the timestamps of kernels wrap around to 0 soon after the start.
inline constexpr uint64_t nanoseconds_of_a_tick = 52;
inline constexpr uint32_t timestamp_bits = 36, kernel_timestamp_bits = 32;

inline uint64_t ticks(uint64_t ns, uint32_t bits) {
  constexpr uint64_t at_start = (uint64_t{1} << kernel_timestamp_bits) - 20'000;  // 1 ms later: 0
  return (at_start + ns / nanoseconds_of_a_tick) & ((uint64_t{1} << bits) - 1);
}

}  // namespace zg::test_driver

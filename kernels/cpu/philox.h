#pragma once

#include <cstdint>

#include "zerograd/runtime/random.h"

namespace zg::cpu {

/// The keys of the rounds of Philox, derived from a seed. Plain data: vector code includes this
/// too.
struct PhiloxKeys {
  uint64_t first[Philox::rounds], second[Philox::rounds];  ///< in the lower 32 bits
};

constexpr PhiloxKeys philox_keys(uint64_t seed) {
  PhiloxKeys keys = {};
  uint32_t first = static_cast<uint32_t>(seed), second = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < Philox::rounds; ++round) {
    keys.first[round] = first;
    keys.second[round] = second;
    first += Philox::weyl0;
    second += Philox::weyl1;
  }
  return keys;
}

}  // namespace zg::cpu

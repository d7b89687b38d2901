#pragma once

#include <cstdint>

#include "zerograd/runtime/random.h"

namespace zg::cpu {

/// The two keys of each Philox round, computed from a seed. Source files with vector
/// instructions include this header for the struct. They must not call philox_keys(): the linker
/// might then keep their copy of it, which other processors cannot run.
struct PhiloxKeys {
  uint64_t first[Philox::rounds], second[Philox::rounds];  ///< 32-bit keys in 64-bit lanes
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

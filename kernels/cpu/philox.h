#pragma once

#include <cstdint>

#include "zerograd/runtime/random.h"

namespace zg::cpu {

/// The two keys of each Philox round, computed from a seed. This header has only plain data,
/// because the source files with vector instructions include it too.
struct PhiloxKeys {
  uint64_t first[Philox::rounds], second[Philox::rounds];  ///< each key uses the lower 32 bits
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

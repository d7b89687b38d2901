#pragma once

#include <array>
#include <cstdint>

namespace zg {

/// Philox4x32-10, the counter-based generator of Salmon et al. 2011, "Parallel random numbers: as
/// easy as 1, 2, 3". The same (counter, key) gives the same four words on every device. So random
/// numbers are never stored: dropout masks and initial weights are recomputed from their position.
struct Philox {
  using Block = std::array<uint32_t, 4>;

  static constexpr uint32_t multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
  static constexpr uint32_t weyl0 = 0x9E3779B9u, weyl1 = 0xBB67AE85u;
  static constexpr int rounds = 10;

  static constexpr Block block(Block counter, uint64_t key) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < rounds; ++round) {
      const uint64_t p0 = uint64_t{multiplier0} * counter[0];
      const uint64_t p1 = uint64_t{multiplier1} * counter[2];
      counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
                 static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
      k0 += weyl0;
      k1 += weyl1;
    }
    return counter;
  }

  /// Word element % 4. All indices are constants, so that on a GPU a block stays in registers.
  static constexpr uint32_t word(const Block& block, int64_t element) {
    const uint32_t low = element & 1 ? block[1] : block[0];
    return element & 2 ? (element & 1 ? block[3] : block[2]) : low;
  }
};

/// A float in [0, 1) from the upper 24 bits of a word; exact, so equal on every device.
constexpr float uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// Identifies a dropout mask. Element e of sample s is kept if uniform(word) >= probability, where
/// `word` is word e % 4 of Philox::block({e / 4, s, step, site}, seed). Ranks may divide the tensor
/// along an axis: e counts the elements of the whole sample, so that a rank draws its part of the
/// mask of one rank.
struct DropoutKey {
  uint64_t seed = 0;
  uint32_t step = 0;    ///< optimizer step
  uint32_t sample = 0;  ///< global index of the tensor's first sample
  uint32_t site = 0;    ///< the dropout layer in the model: hash_name(its name)
  int axis = 1;         ///< the axis that is divided; axis 0 counts samples
  int64_t begin = 0;    ///< index in the whole tensor of the first item of the axis
  int64_t whole = 0;    ///< items of the axis in the whole tensor; 0: it is not divided
};

/// FNV-1a, 64 bit: a stable number for a parameter's or a dropout's name.
constexpr uint64_t hash_name(const char* name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (; *name; ++name) hash = (hash ^ static_cast<uint8_t>(*name)) * 0x100000001b3u;
  return hash;
}

}  // namespace zg

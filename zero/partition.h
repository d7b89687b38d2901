#pragma once

#include <cstdint>
#include <vector>

#include "autograd/parameter.h"

namespace zg::zero {

/// The trainable or the frozen parameters of a unit laid end to end in one flat array, cut into
/// equal shards. Pure arithmetic. Each parameter starts on a multiple of `alignment` elements, and
/// shard borders lie on multiples of it too, so that where a parameter starts does not depend on
/// `world`. Parameters with weight decay come first: AdamW then runs over two ranges at most.
struct FlatUnit {
  static constexpr int64_t alignment = 64;  // elements: a cache line even of bytes
  static constexpr int64_t aligned(int64_t n) {
    return (n + alignment - 1) / alignment * alignment;
  }

  enum class Part : uint8_t { trainable, frozen };

  struct Piece {
    const Parameter* parameter;
    size_t position;     ///< of the parameter in its unit
    int64_t begin;       ///< in the flat array, or in the shard
    int64_t end;         ///< begin + its number of elements
    int64_t offset = 0;  ///< of its first element in the parameter; not 0 only where a shard cuts

    int64_t numel() const { return end - begin; }
  };

  /// Neighbouring pieces of equal weight decay with the padding between and after them.
  struct Range {
    int64_t begin, end;  ///< in the shard; multiples of alignment
    bool decay;

    int64_t numel() const { return end - begin; }
  };

  std::vector<Piece> pieces;
  int64_t numel = 0;   ///< elements of the parameters
  int64_t padded = 0;  ///< length of the flat array: a multiple of world * alignment
  int world = 1;

  ZG_API static FlatUnit of(const Unit& unit, Part part, int world = 1);
  int64_t shard_numel() const { return padded / world; }
  /// What falls into the rank's shard, in places of the shard. Empty parameters belong to none.
  ZG_API std::vector<Piece> shard(int rank) const;
  ZG_API std::vector<Range> ranges(int rank) const;
};

}  // namespace zg::zero

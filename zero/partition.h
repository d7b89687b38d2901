#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zerograd/autograd/parameter.h"

namespace zg::zero {

/// Whether it has gradient sums and optimizer states here: a mirror's value rests as a frozen one's
/// does, though the tape gives it gradients.
inline bool is_updated(const Parameter& parameter) {
  return parameter.trainable && parameter.copy != Copy::mirror;
}

/// The trainable or the frozen ones of some parameters laid end to end in one flat array, cut into
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
    size_t position;     ///< of the parameter in the list it came from
    int64_t begin;       ///< in the flat array, or in the part that was asked for
    int64_t end;         ///< begin + its number of elements
    int64_t offset = 0;  ///< of its first element in the parameter; not 0 only where a shard cuts

    int64_t numel() const { return end - begin; }
  };

  /// Neighbouring pieces of equal weight decay with the padding between and after them.
  struct Range {
    int64_t begin, end;  ///< in the part; multiples of alignment
    bool decay;

    int64_t numel() const { return end - begin; }
  };

  std::vector<Piece> pieces;
  int64_t numel = 0;   ///< elements of the parameters
  int64_t padded = 0;  ///< length of the flat array: a multiple of world * alignment
  int world = 1;

  ZG_API static FlatUnit of(std::span<const Parameter* const> parameters, Part part, int world = 1);
  int64_t shard_numel() const { return padded / world; }
  int64_t shard_begin(int rank) const { return rank * shard_numel(); }
  /// What falls into elements [first, last), in places of that part. Empty parameters are in none.
  ZG_API std::vector<Piece> within(int64_t first, int64_t last) const;
  ZG_API std::vector<Range> ranges(int64_t first, int64_t last) const;
  std::vector<Piece> shard(int rank) const {
    return within(shard_begin(rank), shard_begin(rank + 1));
  }
};

}  // namespace zg::zero

#pragma once

#include <cstdint>
#include <vector>

#include "autograd/parameter.h"

namespace zg::zero {

/// The trainable or the frozen parameters of a unit laid end to end in one flat array, cut into
/// equal shards. Pure arithmetic. Each parameter starts on a multiple of `alignment` elements;
/// shard borders lie on multiples of it too.
struct FlatUnit {
  static constexpr int64_t alignment = 64;  // elements: a cache line even of bytes

  struct Piece {
    const Parameter* parameter;
    int64_t begin;  ///< of the parameter, in the flat array
    int64_t end;    ///< begin + numel
  };

  std::vector<Piece> pieces;
  int64_t numel = 0;   ///< elements of the parameters
  int64_t padded = 0;  ///< length of the flat array: a multiple of world * alignment
  int world = 1;

  ZG_API static FlatUnit of(const Unit& unit, int world = 1);
  int64_t shard_numel() const { return padded / world; }
};

}  // namespace zg::zero

#include "zero/partition.h"

#include <algorithm>

namespace zg::zero {

FlatUnit FlatUnit::of(const Unit& unit, Part part, int world) {
  FlatUnit flat;
  flat.world = world;
  int64_t end = 0;
  for (bool decay : {true, false})
    for (size_t position = 0; position < unit.parameters.size(); ++position) {
      const Parameter* parameter = unit.parameters[position];
      if (parameter->decay != decay || parameter->trainable != (part == Part::trainable)) continue;
      const int64_t numel = parameter->shape.numel();
      flat.pieces.push_back(
          {.parameter = parameter, .position = position, .begin = end, .end = end + numel});
      flat.numel += numel;
      end = aligned(end + numel);
    }
  const int64_t row = world * alignment;
  flat.padded = (end + row - 1) / row * row;
  return flat;
}

std::vector<FlatUnit::Piece> FlatUnit::shard(int rank) const {
  const int64_t first = rank * shard_numel(), last = first + shard_numel();
  std::vector<Piece> clipped;
  for (const Piece& piece : pieces) {
    const int64_t begin = std::max(piece.begin, first), end = std::min(piece.end, last);
    if (begin < end)
      clipped.push_back({.parameter = piece.parameter,
                         .position = piece.position,
                         .begin = begin - first,
                         .end = end - first,
                         .offset = piece.offset + begin - piece.begin});
  }
  return clipped;
}

std::vector<FlatUnit::Range> FlatUnit::ranges(int rank) const {
  std::vector<Range> merged;
  for (const Piece& piece : shard(rank)) {
    const Range range = {piece.begin, aligned(piece.end), piece.parameter->decay};
    if (!merged.empty() && merged.back().decay == range.decay)
      merged.back().end = range.end;
    else
      merged.push_back(range);
  }
  return merged;
}

}  // namespace zg::zero

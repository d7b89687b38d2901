#include "zerograd/zero/states/partition.h"

namespace zg::zero {

FlatUnit FlatUnit::of(std::span<const Parameter* const> parameters, Part part, int world,
                      const UpdateOptions& options) {
  FlatUnit flat;
  flat.world = world;
  int64_t end = 0;
  const auto append = [&](bool whole, bool decay) {
    for (size_t position = 0; position < parameters.size(); ++position) {
      const Parameter* parameter = parameters[position];
      if (parameter->decay != decay || is_updated(*parameter) != (part == Part::trainable) ||
          needs_whole(*parameter, options) != whole)
        continue;
      const int64_t numel = parameter->shape.numel();
      flat.pieces.push_back(
          {.parameter = parameter, .position = position, .begin = end, .end = end + numel});
      flat.numel += numel;
      end = aligned(end + numel);
    }
  };
  for (const bool decay : {true, false}) append(/*whole=*/true, decay);
  flat.whole_end = end;
  for (const bool decay : {true, false}) append(/*whole=*/false, decay);
  const int64_t row = world * alignment;
  flat.padded = (end + row - 1) / row * row;
  return flat;
}

std::vector<FlatUnit::Piece> FlatUnit::within(int64_t first, int64_t last) const {
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

}  // namespace zg::zero

#include "zerograd/zero/states/partition.h"

#include <numeric>

namespace zg::zero {

namespace {

/// By piece: its rank, so that no shard cuts a parameter. The largest parameter first, each to the
/// rank with the fewest elements so far. Units begin with different ranks, so that one rank does
/// not have the largest parameters of all. Depends on sizes and units alone.
std::vector<int> ranks_of(const std::vector<FlatUnit::Piece>& pieces, int world) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return pieces[a].numel() > pieces[b].numel(); });
  std::vector<int64_t> loads(static_cast<size_t>(world));
  std::vector<int> ranks(pieces.size());
  for (const size_t piece : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += FlatUnit::aligned(pieces[piece].numel());
    const int first = pieces.front().parameter->unit->index;
    ranks[piece] = static_cast<int>((least - loads.begin() + first) % world);
  }
  return ranks;
}

}  // namespace

FlatUnit FlatUnit::of(std::span<const Parameter* const> parameters, Part part, int world,
                      const Optimizers& optimizers, bool divides_states) {
  FlatUnit flat;
  flat.world = world;
  const bool trainable = part == Part::trainable;
  std::vector<Piece> ordered;
  std::vector<size_t> optimizer_of;  // by piece
  const size_t optimizer_count = trainable ? optimizers.all().size() : 1;
  for (size_t optimizer = 0; optimizer < optimizer_count; ++optimizer)
    for (const bool decay : {true, false})
      for (size_t position = 0; position < parameters.size(); ++position) {
        const Parameter* parameter = parameters[position];
        if (parameter->decay != decay || is_updated(*parameter) != trainable ||
            (trainable && optimizers.index_of(*parameter) != optimizer))
          continue;
        ordered.push_back({.parameter = parameter,
                           .position = position,
                           .begin = 0,
                           .end = parameter->shape.numel()});
        optimizer_of.push_back(optimizer);
        flat.numel += parameter->shape.numel();
      }
  for (const size_t optimizer : optimizer_of)
    flat.is_owned |= trainable && divides_states && optimizers.all()[optimizer].owns_parameters();
  const auto ranks = flat.is_owned ? ranks_of(ordered, world) : std::vector<int>(ordered.size());
  std::vector<int64_t> lengths(flat.is_owned ? static_cast<size_t>(world) : 1);
  for (size_t i = 0; i < ordered.size(); ++i)
    lengths[static_cast<size_t>(ranks[i])] += aligned(ordered[i].numel());
  const int64_t row = world * alignment;
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  flat.padded = flat.is_owned ? longest * world : (longest + row - 1) / row * row;
  const int64_t share = flat.padded / std::ssize(lengths);
  int64_t covered = 0;  // by sections
  for (int rank = 0; rank < static_cast<int>(lengths.size()); ++rank) {
    int64_t end = rank * share;
    for (size_t optimizer = 0; optimizer < optimizer_count; ++optimizer) {
      for (size_t i = 0; i < ordered.size(); ++i) {
        if (ranks[i] != rank || optimizer_of[i] != optimizer) continue;
        Piece& piece = flat.pieces.emplace_back(ordered[i]);
        piece.begin += end;
        piece.end += end;
        end = aligned(piece.end);
      }
      if (trainable && optimizers.all()[optimizer].gathered) flat.whole_end = end;
      const int64_t section_end = optimizer + 1 < optimizer_count ? end : (rank + 1) * share;
      if (covered < section_end) flat.sections.push_back({covered, section_end, optimizer});
      covered = section_end;
    }
  }
  return flat;
}

void join_units(std::vector<std::vector<const Parameter*>>& units, int world,
                const Optimizers& optimizers) {
  const auto is_owned = [&](const Parameter* parameter) {
    return is_updated(*parameter) && optimizers.of(*parameter).owns_parameters();
  };
  const auto padded = [&](const std::vector<const Parameter*>& parameters) {
    return FlatUnit::of(parameters, FlatUnit::Part::trainable, world, optimizers).padded;
  };
  std::vector<const Parameter*>* joined = nullptr;
  for (std::vector<const Parameter*>& unit : units) {
    if (std::none_of(unit.begin(), unit.end(), is_owned)) continue;
    std::vector<const Parameter*> both;
    if (joined) both = *joined;
    both.insert(both.end(), unit.begin(), unit.end());
    if (joined && padded(both) == padded(*joined)) {
      *joined = std::move(both);
      unit.clear();
    } else {
      joined = &unit;
    }
  }
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

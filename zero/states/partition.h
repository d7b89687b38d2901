#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/zero/optimizer/optimizers.h"

// Offsets in flat arrays, in their shards, and in slices of parameters.
namespace zg::zero {

/// The trainable (or the frozen) parameters of a list, concatenated in one flat array, which is
/// divided into equal shards. Parameters and shards start on multiples of `alignment` elements, so
/// the start of a parameter does not depend on `world`. Parameters with weight decay come first:
/// an update without parameter groups then has at most two ranges. The parameters of an optimizer
/// are next to each other, in the order of Optimizers::all(); so states that only some optimizers
/// have are one range. If an optimizer owns some of them and states are divided (from stage 1 on),
/// each rank has its parameters in its own shard, which cuts none; then the starts depend on
/// `world`.
struct FlatUnit {
  // Elements; 64 bytes even for a dtype of one byte: a cache line.
  static constexpr int64_t alignment = 64;
  static constexpr int64_t aligned(int64_t n) {
    return (n + alignment - 1) / alignment * alignment;
  }

  enum class Part : uint8_t { trainable, frozen };

  struct Piece {
    const Parameter* parameter;
    size_t position;     ///< index of the parameter in the list that the array was made from
    int64_t begin;       ///< in the flat array, or in the range passed to within()
    int64_t end;         ///< begin + its number of elements
    int64_t offset = 0;  ///< index of element `begin` in the parameter; not 0 only if the parameter
                         ///< begins in another shard

    int64_t numel() const { return end - begin; }
  };

  std::vector<Piece> pieces;
  int64_t numel = 0;   ///< elements of the parameters
  int64_t padded = 0;  ///< length of the flat array: a multiple of world * alignment
  int world = 1;
  bool is_owned = false;  ///< each parameter is in the shard of one rank
  int64_t whole_end = 0;  ///< the pieces in [0, whole_end) are those of GatheredOptimizer
  /// Elements of one optimizer, with the padding after them. Together they are the array.
  struct Section {
    int64_t begin, end;
    size_t optimizer;  ///< index in Optimizers::all()
  };
  std::vector<Section> sections = {};

  ZG_API static FlatUnit of(std::span<const Parameter* const> parameters, Part part, int world = 1,
                            const Optimizers& optimizers = Optimizers(UpdateOptions()),
                            bool divides_states = true);
  int64_t shard_numel() const { return padded / world; }
  int64_t shard_begin(int rank) const { return rank * shard_numel(); }
  /// The pieces in elements [first, last), relative to `first`. Empty parameters have no piece.
  ZG_API std::vector<Piece> within(int64_t first, int64_t last) const;
  std::vector<Piece> shard(int rank) const {
    return within(shard_begin(rank), shard_begin(rank + 1));
  }
};

/// Lists of parameters by unit: appends those of a unit to those of a unit before it while they fit
/// into the padding that whole parameters need, so that the rank with the largest one of each unit
/// has no more memory than others. Backward then sends their gradients together.
ZG_API void join_units(std::vector<std::vector<const Parameter*>>& units, int world,
                       const Optimizers& optimizers);

/// The places of parameters in a list of pieces.
class PieceIndex {
 public:
  explicit PieceIndex(std::span<const FlatUnit::Piece> pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) places_.emplace(pieces[i].parameter, i);
  }
  /// The number of pieces if the parameter has none.
  size_t operator()(const Parameter& parameter) const {
    const auto found = places_.find(&parameter);
    return found == places_.end() ? places_.size() : found->second;
  }

 private:
  std::unordered_map<const Parameter*, size_t> places_;
};

inline Slice whole_slice(int64_t numel) { return {.extent = numel, .rows = numel}; }

/// Calls f(i, j, count) for each contiguous run of elements that elements [first, last) of slice
/// `a` share with slice `b`. The run starts at element i of `a` and element j of `b`. The runs come
/// in rising order of i.
template <class F>
void for_each_common(const Slice& a, int64_t first, int64_t last, const Slice& b, const F& f) {
  const int64_t block = b.extent * b.inner, low = b.begin * b.inner, high = low + b.rows * b.inner;
  for (int64_t i = first; i < last;) {
    const int64_t run = std::min(a.run_left(i), last - i), begin = a.whole_index(i);
    for (int64_t x = begin; x < begin + run;) {
      const int64_t place = x % block;
      if (place < low) {
        x += low - place;
      } else if (place >= high) {
        x += block - place + low;
      } else {
        const int64_t count = std::min(high - place, begin + run - x);
        f(i + x - begin, x / block * (high - low) + place - low, count);
        x += count;
      }
    }
    i += run;
  }
}

}  // namespace zg::zero

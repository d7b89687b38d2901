#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/comm.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/partition.h"

namespace zg::zero {

/// One flat array of values: whole, or at rest only this rank's shard of it.
struct Values {
  FlatUnit flat;
  Tensor shard;  ///< a view of `whole` where that stays
  Tensor whole;  ///< absent while only the shard is held

  bool empty() const { return flat.pieces.empty(); }
};

/// The bytes that one rank holds of some parameters, a flat buffer per kind: their values, and of
/// what the stage leaves to this rank, masters, moments and gradient sums. A storage is a unit, or
/// all small parameters of a store at stage 3.
struct Storage {
  struct Place {
    const Config& config;
    int rank, world;
    const Device& device;
    bool stays_whole;            ///< values are never evicted
    Space parameter, optimizer;  ///< of this storage's values and states
  };
  Storage(std::string name, std::span<const Parameter* const> parameters, const Place& place);

  /// Values and masters from (seed, name, element), rounded to `load`, of what this rank holds;
  /// moments and sums are zero already. Whole values of other ranks' shards are made here too,
  /// without an exchange.
  void initialise(uint64_t seed, DType load);

  /// What is not in `folded` becomes zero: its sum is undefined until then.
  void zero_unfolded(Stream& stream);

  /// The memory of a piece's sum, for the first gradient of a step to be made in. It is lent as
  /// long as a copy of the tensor lives. Absent while it is lent, once something was folded into
  /// it, and unless the sums are f32 on the device.
  Tensor lend_sum(size_t piece);
  bool is_lent(size_t piece) const { return !lent[piece].expired(); }
  /// The sums go elsewhere and leave their memory to those it is lent to: before anything else is
  /// written to a sum that is lent. A tape that waits while others are walked comes to that.
  void leave_lent(Stream& stream);
  void clear() { folded.assign(pieces.size(), false); }

  /// The compute copies of masters [begin, end), places of the trainable flat array inside the
  /// state's range, follow them; nothing to do where they are the same bytes.
  void round_masters(int64_t begin, int64_t end);
  /// Where AdamW writes the compute copy of a range of the state; absent where masters are values.
  Tensor low_precision(int64_t begin, int64_t numel) const;

  std::string name;
  DType compute;
  int rank;
  bool stays_whole;
  bool values_are_masters;  ///< compute and optimizer dtypes are the same
  Values trainable, frozen;
  int64_t state_begin = 0, state_numel = 0;  ///< of the trainable flat array: masters and moments
  int64_t sums_begin = 0;                    ///< of the shard that `sums` covers
  std::vector<FlatUnit::Piece> pieces;       ///< of the shard
  Tensor masters;                            ///< optimizer dtype
  Tensor moment1, moment2;                   ///< optimizer dtype
  Tensor sums;                               ///< grad_accum: gradients folded since clear()
  Tensor local_sums;                         ///< f32, whole: only with reduce_at_boundary
  std::vector<bool> folded;                  ///< by piece: its sum holds something
  std::vector<std::weak_ptr<Buffer>> lent;   ///< by piece: what lend_sum() gave
};

}  // namespace zg::zero

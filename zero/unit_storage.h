#pragma once

#include <cstdint>
#include <vector>

#include "runtime/tensor.h"
#include "zero/partition.h"

namespace zg::zero {

/// The bytes of one unit on one rank, a flat buffer per kind: whole values, and of the rank's shard
/// what the optimizer needs. Buffers without parameters are absent.
struct UnitStorage {
  UnitStorage(const Unit& unit, const Device& device, DType compute);

  /// Values and masters from (seed, name, element); moments and sums are zero already.
  void initialise(uint64_t seed, Stream& stream);

  /// A view of the parameter's value, whose flat array it begins in at `begin`.
  Tensor value(const Parameter& parameter, int64_t begin) const;

  /// Adds a micro-batch's whole gradients, one per parameter of the unit or absent, each rounded
  /// once to the compute dtype; takes them out of the span one by one.
  void fold(std::span<Tensor> gradients, Stream& stream);
  /// What was not folded since clear() becomes zero: its sum is undefined until then.
  void zero_unfolded(Stream& stream);
  void clear() { folded.assign(pieces.size(), false); }

  /// The compute copy follows the masters in [begin, end) of the shard; nothing to do for f32.
  void round_masters(int64_t begin, int64_t end, Stream& stream);
  /// Where AdamW writes that copy; absent for f32, whose masters are the values.
  Tensor low_precision(const FlatUnit::Range& range) const;

  const Unit* unit;
  DType compute;
  FlatUnit trainable, frozen;
  int64_t shard_begin = 0;              ///< of this rank, in the trainable flat array
  std::vector<FlatUnit::Piece> pieces;  ///< of the shard
  Tensor values, frozen_values;         ///< compute dtype, whole; frozen ones have no master
  Tensor masters;                       ///< f32, the shard; a view of `values` when they are f32
  Tensor moment1, moment2;              ///< f32, the shard
  Tensor sums;                          ///< f32, the shard: gradients folded since clear()
  std::vector<bool> folded;             ///< by piece: its sum holds something
  int users = 0;                        ///< acquire minus release
};

}  // namespace zg::zero

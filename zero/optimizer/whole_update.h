#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/tensor.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer.h"
#include "zerograd/zero/optimizer/lanes.h"
#include "zerograd/zero/optimizer/optimizers.h"
#include "zerograd/zero/states/partition.h"
#include "zerograd/zero/states/storage.h"

// The update of whole parameters whose states stay divided over the ranks element by element. Each
// rank computes directions from the gradients of its shard, in chunks where the states are
// streamed, and the directions of a unit are gathered. The rule makes steps of them. Then each rank
// updates its shard. It takes memory for the directions of one unit.
namespace zg::zero {

/// The part of an update that a rule decides.
struct WholeRule {
  DType directions;  ///< f32 | bf16
  /// The tensor that `direct` gets: a lane of StateTensors that it may write, or masters_lane,
  /// which it only reads.
  size_t state;

  /// Elements from `begin` on, which counts from Storage::state_begin. On `stream` the tensors are
  /// in memory.
  struct Chunk {
    int64_t begin;
    Tensor state, gradient;
    Tensor direction;  ///< out; zero before
    Stream& stream;
  };
  /// Writes the directions of a chunk, 0 for padding. In a skipped step they must stay zero, and
  /// the allocations are the same.
  std::function<void(const Chunk&)> direct;
  /// Replaces the directions, of all whole parameters of the unit, by steps. Called on every rank,
  /// also in a skipped step, with the same collectives and allocations. `directions` is on the
  /// device, and its padding is zero.
  std::function<void(const Tensor& directions)> make_steps;
};

/// The parameters of a flat array that are updated whole, in its order.
std::vector<FlatUnit::Piece> whole_pieces(const FlatUnit& flat);

/// p = (1 - rate weight_decay) p - rate step, in the masters' dtype, for the whole parameters of a
/// storage; there must be one. `all_sums`: the gradient accumulators of all ranks, at stage 0 on
/// several ranks.
void update_whole(const GatheredOptimizer::Update& update, const WholeRule& rule);

}  // namespace zg::zero

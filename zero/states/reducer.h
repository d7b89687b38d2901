#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/zero/states/storage.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {

/// A leaf: the gradients of a storage in one micro-batch, concatenated in one array, in the compute
/// dtype. This array is sent to the owners of the shards.
class GradientLeaf {
 public:
  GradientLeaf(const Storage& storage, const Device& device);

  /// Lends the memory of a parameter's range, so that its gradient is computed in place. The
  /// gradient must have the leaf's dtype. The memory is lent as long as a copy of the returned
  /// tensor exists. Absent if it is lent already or filled.
  Tensor lend(const Parameter& parameter);
  bool is_lent() const;
  /// Stores a gradient, rounded to the leaf's dtype, unless it was computed in place. Absent: the
  /// parameter has none.
  void fill(const Parameter& parameter, const Tensor& gradient);
  bool is_empty() const { return missing_ == filled_.size(); }
  bool is_full() const { return missing_ == 0; }
  /// Sets ranges without a gradient to zero and returns the tensor to send, which shares no memory
  /// with a lent tensor.
  const Tensor& complete();

 private:
  Tensor part(size_t index) const;
  /// Moves the gradients to new memory and leaves the old memory to the tensors it is lent to.
  void move();

  Device device_;
  std::string name_;
  const FlatUnit* flat_unit_;
  const PieceIndex* index_of_;
  Tensor flat_;
  std::vector<bool> filled_;                 // by piece
  std::vector<std::weak_ptr<Buffer>> lent_;  // by piece
  size_t missing_;
};

/// Sends the gradients of each micro-batch to the owners of their shards, which add them in rising
/// order of the global micro-batch. This order is the same for every world size. A leaf is rounded
/// once to the compute dtype, sent, and added to accumulators in Config::grad_accum. A gradient
/// that was computed in the accumulator or in the leaf's memory is not copied. Accumulators in a
/// file are streamed through memory: on one rank in chunks of sub_group_size, on several ranks a
/// storage's whole shard.
class Reducer {
 public:
  Reducer(Communicator& comm, const Device& device, const Config& config);

  /// Memory for a gradient that is about to be computed: a range of the leaf that will be sent.
  /// Absent if that memory is lent already, if the leaf has a narrower dtype than the gradient, or
  /// if accumulators are in a file.
  Tensor place_of(Storage& storage, const Parameter& parameter);
  /// gradients[i] is the gradient of parameters[i], absent if backward computed none. Each tensor
  /// is released after use.
  void reduce(Storage& storage, std::span<const Parameter* const> parameters,
              std::span<Tensor> gradients);
  /// Sets Storage::summed where a leaf has been added to the accumulators. Does not wait.
  void note_sums();
  /// Ends a micro-batch: sends the leaves of small parameters of several units, and waits for all
  /// leaves.
  void finish();
  /// With reduce_at_boundary: reduces the ranks' local accumulators.
  void reduce_local_sums(Storage& storage);

 private:
  struct Leaf {
    Storage* storage;
    GradientLeaf gradients;
    Communicator::Ticket last = -1;
    std::unique_ptr<Streaming> sums;  // streams accumulators that are in a file
    Tensor place = {};                // the accumulators in memory
    Tensor near = {};                 // where kernels add to them: `place`, or a copy
  };
  void fold_here(Storage& storage, std::span<const Parameter* const> parameters,
                 std::span<Tensor> gradients);
  Leaf& leaf_of(Storage& storage);
  void send(Leaf& leaf);
  /// Adds every rank's `whole` to the owners' accumulators, in buckets. Returns the last ticket.
  Communicator::Ticket scatter(const Tensor& whole, const Tensor& sums, const Storage& storage,
                               bool fresh);
  void wait_for(size_t in_flight);
  std::unique_ptr<Streaming> stream(std::vector<Streaming::Part> parts) const;
  /// Waits for the writes of the previous accumulators, then starts those of `sums`.
  void leave(std::unique_ptr<Streaming> sums);

  Communicator& comm_;
  const Device device_;
  const Config& config_;
  std::vector<Leaf> filling_;           // leaves that still expect gradients
  std::deque<Leaf> in_flight_;          // being exchanged
  std::unique_ptr<Streaming> leaving_;  // updated accumulators on their way to the disk
};

}  // namespace zg::zero

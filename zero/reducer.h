#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "zerograd/runtime/comm.h"
#include "zerograd/zero/gradient_leaf.h"
#include "zerograd/zero/storage.h"
#include "zerograd/zero/streaming.h"

namespace zg::zero {

/// Brings each micro-batch's whole gradients to the owners of their shards, which add them in
/// rising global micro-batch: the one order that every world size can keep. A leaf is rounded once,
/// travels in the compute dtype, and is added to sums in Config::grad_accum. One that was made
/// where its sum or its part of a leaf belongs stays there. Sums in a file pass through memory:
/// alone in parts of sub_group_size, among ranks a storage's whole shard.
class Reducer {
 public:
  Reducer(Communicator& comm, const Device& device, const Config& config);

  /// Memory for the gradient of a parameter that is about to be made: its part of the leaf that it
  /// will travel in. Absent while that is lent, where a leaf rounds, and where sums are in a file.
  Tensor place_of(Storage& storage, const Parameter& parameter);
  /// `gradients` belong to `parameters`, absent where none arose; taken out of the span one by one.
  void reduce(Storage& storage, std::span<const Parameter* const> parameters,
              std::span<Tensor> gradients);
  /// The end of a micro-batch: what several units share is sent, and everything has arrived.
  void finish();
  /// With reduce_at_boundary: the ranks' own sums meet.
  void reduce_local_sums(Storage& storage);

 private:
  struct Leaf {
    Storage* storage;
    GradientLeaf gradients;
    Communicator::Ticket last = -1;
    std::unique_ptr<Streaming> sums;  // of those in a file
  };
  void fold_here(Storage& storage, std::span<const Parameter* const> parameters,
                 std::span<Tensor> gradients);
  Leaf& leaf_of(Storage& storage);
  void send(Leaf& leaf);
  /// Adds every rank's `whole` to its owners' sums, in buckets; the last one's ticket.
  Communicator::Ticket scatter(const Tensor& whole, const Tensor& sums, const Storage& storage,
                               bool fresh);
  void wait_for(size_t in_flight);
  std::unique_ptr<Streaming> stream(std::vector<Streaming::Part> parts) const;
  /// What was on its way to the drive before is there.
  void leave(std::unique_ptr<Streaming> sums);

  Communicator& comm_;
  const Device device_;
  const Config& config_;
  std::vector<Leaf> filling_;           // leaves with parts still to come
  std::deque<Leaf> in_flight_;          // being exchanged
  std::unique_ptr<Streaming> leaving_;  // sums that were added to, on their way to the drive
};

}  // namespace zg::zero

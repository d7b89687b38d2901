#pragma once

#include <array>
#include <deque>
#include <vector>

#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/states/storage.h"

namespace zg::zero {

/// When values are whole. The only state machine of stage 3, for each storage:
///
///   Sharded -> Gathering -> Resident(users) -> Evictable -> Sharded
///
/// The unit released last stays Evictable until another one is acquired: backward begins with the
/// unit that forward ended with, and a recomputed block is acquired again at once. The next unit in
/// the order of the last pass in this mode is gathered ahead. All of it happens at places of the
/// program that are the same on every rank, and nothing depends on timing.
class Residency {
 public:
  Residency(std::vector<Storage>& storages, Communicator& comm, const Config& config);

  void resize() { states_.resize(storages_.size()); }  ///< once all storages are there
  /// A pass begins: the last one is over, and its order is followed from the start.
  void start(TapeMode mode);
  /// The pass is over: its order is remembered, and everything unused goes back to shards.
  void finish() noexcept;

  void acquire(size_t storage);  ///< after it, values are whole
  void release(size_t storage) noexcept;

 private:
  struct State {
    int users = 0;
    bool gathering = false;
    std::vector<Communicator::Ticket> tickets;
    std::array<Tensor, 2> shards;  // shards stored in a file are read into these
    SwapTicket read = 0;
  };
  void gather(size_t storage);
  void exchange(size_t storage);
  void complete(size_t storage);
  void evict(size_t storage) noexcept;
  void prefetch();

  std::vector<Storage>& storages_;
  Communicator& comm_;
  const Config& config_;
  std::vector<State> states_;
  size_t mode_ = 0;
  std::array<std::vector<size_t>, 2> orders_;  // by mode: order of the last complete pass
  std::vector<size_t> order_;                  // order of the current pass so far
};

/// One flat array in buckets of at most `bucket` elements of the whole.
void gather_in_buckets(const Tensor& shard, const Tensor& whole, const std::string& name,
                       int64_t bucket, Communicator& comm,
                       std::vector<Communicator::Ticket>& tickets);

}  // namespace zg::zero

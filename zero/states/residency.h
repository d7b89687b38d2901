#pragma once

#include <array>
#include <set>
#include <vector>

#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/states/storage.h"

namespace zg::zero {

/// Gathers whole parameters before a unit is used and frees them afterwards. Stage 3 has one state
/// machine per storage:
///
///   Sharded -> Gathering -> Resident(users) -> Evictable -> Sharded
///
/// The unit released last stays in memory (Evictable) until another unit is acquired, because it is
/// often acquired again at once: by backward after forward, and by a recomputed block. The next
/// units are prefetched in the order of the last pass of the same mode, as long as the units that
/// are prefetched and not used yet are at most Config::prefetch_units and have at most
/// Config::prefetch_bucket_size elements. A unit for its second use is prefetched after its first
/// use. All ranks gather and evict at the same points of the program. Nothing depends on timing.
///
/// A prefetched unit in a file is read ahead; its shards are exchanged when it is acquired.
class Residency {
 public:
  Residency(std::vector<Storage>& storages, Communicator& comm, const Config& config);
  /// Waits for reads that are in progress. Collectives keep their tensors alive themselves, and
  /// after a failure they would wait for ranks that do not arrive.
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  void resize() { states_.resize(storages_.size()); }  ///< call it when all storages exist
  /// Finishes the previous pass and begins a new one.
  void start(TapeMode mode);
  /// Ends the pass: saves the order of its units and frees whole parameters that have no users,
  /// prefetched ones too.
  void finish() noexcept;

  void acquire(size_t storage);  ///< on return, the whole parameters are in device memory
  void release(size_t storage) noexcept;

 private:
  struct State {
    int users = 0;
    bool gathering = false;
    std::vector<Communicator::Ticket> tickets;
    std::array<Tensor, 2> shards;  // shards stored in a file are read into these
    SwapTicket read = {};
  };
  void gather(size_t storage);
  void exchange(size_t storage);
  void wait_for_read(size_t storage);
  void complete(size_t storage);
  void evict(size_t storage) noexcept;
  void prefetch();

  std::vector<Storage>& storages_;
  Communicator& comm_;
  const Config& config_;
  std::vector<State> states_;
  size_t mode_ = 0;
  // By mode: order of the units in the last complete pass.
  std::array<std::vector<size_t>, 2> orders_;
  std::vector<size_t> order_;  // order of the current pass so far
  bool repeats_ = true;        // order_ begins orders_[mode_]
  // Storages that are whole and may be evicted, so that a use does not go through all storages.
  std::set<size_t> held_;
};

/// Gathers `shard` into `whole` in buckets. A bucket has at most `bucket` elements of `whole`.
void gather_in_buckets(const Tensor& shard, const Tensor& whole, const std::string& name,
                       int64_t bucket, Communicator& comm,
                       std::vector<Communicator::Ticket>& tickets);

}  // namespace zg::zero

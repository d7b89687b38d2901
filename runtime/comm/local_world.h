#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/blame.h"
#include "zerograd/runtime/comm/local_group.h"

namespace zg::cpu {

/// Shared by the ranks of one process: their groups, the failure that ends all groups, and the
/// activity of each rank's own thread. One mutex guards this and all groups.
class LocalWorld {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  using MakeTransports = std::function<std::shared_ptr<const Transports>(const Members&)>;

  LocalWorld(int size, double timeout_s);
  ~LocalWorld();

  /// The group of these members, made by the first member that calls. ConfigError: this rank is in
  /// it already.
  std::shared_ptr<LocalGroup> join(int rank, const Members& members, const MakeTransports& make);
  /// A member leaves the group. `fails`: it throws; its cause follows later, or never.
  void leave(LocalGroup& group, int member, bool fails) noexcept;

  /// The rank's own thread waits in this group; null: it goes on.
  void waits(int rank, const LocalGroup* group);
  void abort(int rank, const std::string& cause) noexcept;  ///< collectives fail on all ranks
  bool failed() const;
  std::string failure() const;
  void dump_logs() const;

  int size() const { return static_cast<int>(ranks_.size()); }
  std::shared_ptr<std::atomic<int64_t>> step(int rank) const { return at(rank).step; }

 private:
  friend class LocalGroup;
  struct Rank {
    std::shared_ptr<std::atomic<int64_t>> step = std::make_shared<std::atomic<int64_t>>(0);
    bool left = false;
    const LocalGroup* waits_in = nullptr;
    Clock::time_point alive = Clock::now();  // when its own thread last went on
    std::string last;                        // named() of the collective it was in
  };
  const Rank& at(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  // Under the mutex.
  /// `place`: where() of the failure, whose ranks need not say where they are; empty: nowhere.
  void fail(const std::string& cause, const std::string& place);
  /// Called for a rank that has waited like this since `began`, past its deadline. Returns its next
  /// deadline, which does not matter after fail().
  Clock::time_point late(const Activity& waiting, Clock::time_point began);
  Activity activity(int rank) const;

  const std::chrono::duration<double> timeout_;
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::vector<std::shared_ptr<LocalGroup>> groups_;  // the first: all ranks
  std::string failure_;
  std::string failed_at_;
};

}  // namespace zg::cpu

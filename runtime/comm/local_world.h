#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/collective_log.h"

namespace zg::cpu {

class LocalWorld;
struct Transports;

/// A group of ranks that are threads. A collective has two meetings: at the first all members have
/// arrived, so their inputs may be read; at the second all are done, so inputs may change again.
/// Members are numbered within the group.
class LocalGroup {
 public:
  using Clock = std::chrono::steady_clock;

  LocalGroup(LocalWorld& world, Members members, std::shared_ptr<const Transports> transports);

  /// Arrives with `call`, runs `action` once every member has arrived, and returns when all members
  /// have run their action. Throws CommError naming rank, collective, tensor and step.
  void meet(int member, int64_t sequence, Call call, const std::function<void()>& action);
  /// Called inside `action` to wait for work that all devices do together. Returns once done() is
  /// true. Throws CommError when a rank fails, and at the deadline.
  void await(int member, int64_t sequence, Clock::time_point deadline,
             const std::function<bool()>& done);
  Clock::time_point deadline() const;
  /// The input of a peer's call; valid inside `action`.
  const Tensor& input_of(int member) const { return call_of(member).input; }
  const Call& call_of(int member) const { return at(member).call; }

  const Members& members() const { return members_; }
  const Transports& transports() const { return *transports_; }
  const std::shared_ptr<CollectiveLog>& log(int member) const { return at(member).log; }

 private:
  friend class LocalWorld;
  struct Member {
    int64_t arrived = -1, done = -1;  // sequence numbers
    Call call;
    bool joined = false;
    bool left = false, fails = false;
    Clock::time_point alive{};             // when a wait for others last ended
    Clock::time_point last_device_wait{};  // when it last waited for its device
    std::shared_ptr<CollectiveLog> log;
  };
  using Lock = std::unique_lock<std::mutex>;
  const Member& at(int member) const { return each_[static_cast<size_t>(member)]; }
  Member& at(int member) { return each_[static_cast<size_t>(member)]; }

  // Called with the world's mutex locked.
  int member_of(int rank) const;
  bool join(int rank);                 ///< false: the rank was a member and has left
  bool leave(int member, bool fails);  ///< true: it was the last member
  Activity activity(int rank) const;
  void add_running(std::vector<int>& ranks) const;  ///< adds the members that run their action
  void await(Lock& lock, int member, int64_t sequence, int64_t Member::*progress);
  void check_for_early_return(int member, int64_t sequence);
  void check_pieces(int member);
  std::string place_of(int member) const;
  std::string failure_for(int member) const;
  bool all_have(int64_t Member::*progress, int64_t sequence) const;
  std::vector<int> missing_ranks(int64_t Member::*progress, int64_t sequence) const;

  LocalWorld& world_;
  const Members members_;
  const std::shared_ptr<const Transports> transports_;
  std::condition_variable changed_;
  std::vector<Member> each_;
};

/// Shared by the ranks of one process: their groups, the failure that ends all groups, and the
/// activity of each rank's own thread. One mutex guards this and all groups.
class LocalWorld {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  using MakeTransports = std::function<std::shared_ptr<const Transports>(const Members&)>;

  LocalWorld(int size, double timeout_s);
  ~LocalWorld();

  /// Returns the group of these members; the first member that calls makes it. ConfigError if this
  /// rank is a member already.
  std::shared_ptr<LocalGroup> join(int rank, const Members& members, const MakeTransports& make);
  /// A member leaves the group. `fails`: its thread is throwing an exception; abort() may report
  /// the cause later.
  void leave(LocalGroup& group, int member, bool fails) noexcept;

  /// The rank's own thread starts to wait in this group; null: it stops waiting.
  void set_waits_in(int rank, const LocalGroup* group);
  /// The rank's own thread starts to wait until no rank runs a collective, or stops waiting.
  void set_waits_for_collectives(int rank, bool waits);
  void abort(int rank, const std::string& cause) noexcept;  ///< collectives fail on all ranks
  bool failed() const;
  std::string failure() const;
  void dump_logs() const;
  /// The rank's own thread has thrown or received the failure, so it will end by itself.
  void note_saw_failure(int rank) { saw_failure_[static_cast<size_t>(rank)] = true; }
  bool saw_failure(int rank) const { return saw_failure_[static_cast<size_t>(rank)]; }

  int size() const { return static_cast<int>(ranks_.size()); }
  std::shared_ptr<std::atomic<int64_t>> step(int rank) const { return at(rank).step; }

 private:
  friend class LocalGroup;
  struct Rank {
    std::shared_ptr<std::atomic<int64_t>> step = std::make_shared<std::atomic<int64_t>>(0);
    bool left = false;
    const LocalGroup* waits_in = nullptr;
    bool waits_for_collectives = false;      // its own thread waits until no rank runs one
    Clock::time_point alive = Clock::now();  // when its own thread last made progress
    std::string last;                        // named() of its last collective
  };
  const Rank& at(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  // Called with the mutex locked.
  /// `place`: the result of where() for the call that failed; ranks that wait in the same call do
  /// not repeat it in their errors. Empty: no place.
  void fail(const std::string& cause, const std::string& place);
  /// Called for a rank that has waited since `began`, past its deadline. Either fails, or returns a
  /// later deadline because the ranks it waits for still make progress.
  Clock::time_point extend_or_fail(const Activity& waiting, Clock::time_point began);
  Activity activity(int rank) const;

  const std::chrono::duration<double> timeout_;
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::vector<std::atomic<bool>> saw_failure_;       // by rank
  std::vector<std::shared_ptr<LocalGroup>> groups_;  // the first: all ranks
  std::string failure_;
  std::string failed_at_;
};

}  // namespace zg::cpu

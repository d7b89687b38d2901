#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/blame.h"
#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/collective_log.h"

namespace zg::cpu {

class LocalWorld;
struct Transports;

/// Where ranks of one process meet. A collective is two meetings: all have arrived (their inputs
/// may be read), all are done (they may be changed again). Members go by their number in the group.
class LocalGroup {
 public:
  using Clock = std::chrono::steady_clock;

  LocalGroup(LocalWorld& world, Members members, std::shared_ptr<const Transports> transports);

  /// Arrives with `call`, runs `action` once every member has, and returns when all are done with
  /// theirs. Throws CommError naming rank, collective, tensor and step.
  void meet(int member, int64_t sequence, Call call, const std::function<void()>& action);
  /// Called inside `action` for work that devices do together. Returns once done() is true. Throws
  /// CommError when a rank fails, and at the deadline.
  void await(int member, int64_t sequence, Clock::time_point deadline,
             const std::function<bool()>& done);
  Clock::time_point deadline() const;
  /// The input with which a peer arrived; valid inside `action`.
  const Tensor& input_of(int member) const { return at(member).call.input; }

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
    Clock::time_point alive{};   // when it last waited for others
    Clock::time_point looked{};  // when it was last seen to wait for its device
    std::shared_ptr<CollectiveLog> log;
  };
  using Lock = std::unique_lock<std::mutex>;
  const Member& at(int member) const { return each_[static_cast<size_t>(member)]; }
  Member& at(int member) { return each_[static_cast<size_t>(member)]; }

  // Under the world's mutex.
  int member_of(int rank) const;
  bool join(int rank);                 ///< false: it has been in it, and left
  bool leave(int member, bool fails);  ///< true: it was the last
  Activity activity(int rank) const;
  void await(Lock& lock, int member, int64_t sequence, int64_t Member::*progress);
  void look_for_left(int member, int64_t sequence);
  std::string place_of(int member) const;
  std::string failure_for(int member) const;
  std::vector<int> late(int64_t Member::*progress, int64_t sequence) const;

  LocalWorld& world_;
  const Members members_;
  const std::shared_ptr<const Transports> transports_;
  std::condition_variable changed_;
  std::vector<Member> each_;
};

}  // namespace zg::cpu

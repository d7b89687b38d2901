#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cpu/call.h"

namespace zg::cpu {

/// Where the ranks of one process meet. A collective is two meetings: all have arrived (their
/// inputs may be read), all are done (they may be changed again).
class LocalGroup {
 public:
  using Clock = std::chrono::steady_clock;

  LocalGroup(int size, double timeout_s);

  /// Arrives with `call`, runs `action` once every rank has, and returns when all are done with
  /// theirs. Throws CommError naming rank, collective, tensor and step.
  void meet(int rank, int64_t sequence, Call call, const std::function<void()>& action);
  /// Inside `action`, of work that devices do together: returns once done() is true. Throws
  /// CommError when a rank fails, and at the deadline.
  void await(int rank, int64_t sequence, Clock::time_point deadline,
             const std::function<bool()>& done);
  Clock::time_point deadline() const {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout_);
  }
  /// What a peer arrived with; valid inside `action`.
  const Tensor& input_of(int rank) const { return members_[static_cast<size_t>(rank)].call.input; }

  void abort(int rank, const std::string& cause) noexcept;  ///< everybody's meetings fail
  void leave(int rank) noexcept;  ///< fine when all leave at the same place
  void set_step(int rank, int64_t step);
  bool failed() const;
  std::string failure() const;

 private:
  struct Member {
    int64_t arrived = -1, done = -1;  // sequence numbers
    Call call;
    int64_t step = 0;
    bool left = false;
    Clock::time_point looked{};  // when it was last seen to wait for its device
  };
  using Lock = std::unique_lock<std::mutex>;
  void await(Lock& lock, int rank, int64_t sequence, int64_t Member::*progress, const char* verb);
  void fail(const std::string& cause);
  std::string failure_for(int rank, int64_t sequence) const;
  std::vector<int> late_ranks(int64_t Member::*progress, int64_t sequence) const;

  const int size_;
  const std::chrono::duration<double> timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::string failure_;
  bool aborted_ = false;  // the failure says nothing of where the others are: each adds its place
};

}  // namespace zg::cpu

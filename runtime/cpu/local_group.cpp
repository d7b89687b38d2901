#include "runtime/cpu/local_group.h"

#include <algorithm>

#include "runtime/error.h"

namespace zg::cpu {

LocalGroup::LocalGroup(int size, double timeout_s)
    : size_(size), timeout_(timeout_s), members_(static_cast<size_t>(size)) {}

void LocalGroup::fail(const std::string& cause) {
  if (failure_.empty()) failure_ = cause;
  changed_.notify_all();
}

void LocalGroup::await(Lock& lock, int rank, int64_t sequence, int64_t Member::*progress,
                       const char* verb) {
  const Member& self = members_[static_cast<size_t>(rank)];
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(timeout_);
  const auto missing = [&] {
    for (int peer = 0; peer < size_; ++peer)
      if (members_[static_cast<size_t>(peer)].*progress < sequence) return peer;
    return -1;
  };
  for (;;) {
    // First, so that what every rank has done succeeds on all of them, whatever failed since.
    const int peer = missing();
    if (peer < 0) return;
    if (!failure_.empty())
      throw CommError(failure_ + (aborted_ ? "; rank " + std::to_string(rank) + " waits in " +
                                                 where(self.call, sequence, self.step)
                                           : ""));
    const Member& late = members_[static_cast<size_t>(peer)];
    if (late.left && late.arrived < sequence) {
      fail(early_return(peer, late.step, where(self.call, sequence, self.step)));
      continue;
    }
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && failure_.empty() &&
        missing() >= 0) {
      std::vector<int> ranks;
      for (int r = 0; r < size_; ++r)
        if (members_[static_cast<size_t>(r)].*progress < sequence) ranks.push_back(r);
      fail(absence(ranks, verb, timeout_.count(), where(self.call, sequence, self.step)));
    }
  }
}

void LocalGroup::meet(int rank, int64_t sequence, Call call, const std::function<void()>& action) {
  Lock lock(mutex_);
  Member& self = members_[static_cast<size_t>(rank)];
  self.call = std::move(call);
  self.arrived = sequence;
  changed_.notify_all();
  await(lock, rank, sequence, &Member::arrived, "arrive");
  const auto agrees = [&](const Member& other) { return other.call.agrees(self.call); };
  if (!std::all_of(members_.begin(), members_.end(), agrees)) {
    std::vector<Call> calls;
    for (const Member& member : members_) calls.push_back(member.call);
    fail(disagreement(sequence, self.step, calls));
    throw CommError(failure_);
  }
  lock.unlock();
  action();
  lock.lock();
  self.done = sequence;
  changed_.notify_all();
  await(lock, rank, sequence, &Member::done, "finish");
  self.call.input = {};
}

void LocalGroup::abort(int rank, const std::string& cause) noexcept {
  try {
    Lock lock(mutex_);
    const Member& self = members_[static_cast<size_t>(rank)];
    aborted_ = aborted_ || failure_.empty();
    fail(failure_of(rank, self.step, self.arrived >= 0 ? named(self.call, self.arrived) : "",
                    cause));
  } catch (...) {
    changed_.notify_all();
  }
}

void LocalGroup::leave(int rank) noexcept {
  Lock lock(mutex_);
  members_[static_cast<size_t>(rank)].left = true;
  changed_.notify_all();
}

void LocalGroup::set_step(int rank, int64_t step) {
  Lock lock(mutex_);
  members_[static_cast<size_t>(rank)].step = step;
}

bool LocalGroup::failed() const {
  Lock lock(mutex_);
  return !failure_.empty();
}

std::string LocalGroup::failure() const {
  Lock lock(mutex_);
  return failure_;
}

}  // namespace zg::cpu

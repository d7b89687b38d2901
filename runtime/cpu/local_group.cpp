#include "runtime/cpu/local_group.h"

#include <algorithm>

#include "runtime/cpu/pace.h"
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
  const auto deadline = this->deadline();
  const auto missing = [&] {
    for (int peer = 0; peer < size_; ++peer)
      if (members_[static_cast<size_t>(peer)].*progress < sequence) return peer;
    return -1;
  };
  for (;;) {
    // First, so that what every rank has done succeeds on all of them, whatever failed since.
    const int peer = missing();
    if (peer < 0) return;
    if (!failure_.empty()) throw CommError(failure_for(rank, sequence));
    const Member& late = members_[static_cast<size_t>(peer)];
    if (late.left && late.arrived < sequence) {
      fail(early_return(peer, late.step, where(self.call, sequence, self.step)));
      continue;
    }
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && failure_.empty() &&
        missing() >= 0)
      fail(absence(late_ranks(progress, sequence), verb, timeout_.count(),
                   where(self.call, sequence, self.step)));
  }
}

std::string LocalGroup::failure_for(int rank, int64_t sequence) const {
  const Member& self = members_[static_cast<size_t>(rank)];
  return failure_ + (aborted_ ? "; rank " + std::to_string(rank) + " waits in " +
                                    where(self.call, sequence, self.step)
                              : "");
}

// Of those that are not there yet, the ones that nobody has seen waiting of late, if any: the
// others wait for them.
std::vector<int> LocalGroup::late_ranks(int64_t Member::*progress, int64_t sequence) const {
  std::vector<int> ranks, silent;
  const auto recently = Clock::now() - std::chrono::milliseconds(500);
  for (int rank = 0; rank < size_; ++rank) {
    const Member& member = members_[static_cast<size_t>(rank)];
    if (member.*progress >= sequence) continue;
    ranks.push_back(rank);
    if (member.looked < recently) silent.push_back(rank);
  }
  return silent.empty() ? ranks : silent;
}

void LocalGroup::await(int rank, int64_t sequence, Clock::time_point deadline,
                       const std::function<bool()>& done) {
  Member& self = members_[static_cast<size_t>(rank)];
  for (Pace pace(1000); !done(); pace.rest()) {
    const Lock lock(mutex_);
    self.looked = Clock::now();
    if (failure_.empty() && self.looked > deadline)
      fail(absence(late_ranks(&Member::done, sequence), "finish", timeout_.count(),
                   where(self.call, sequence, self.step)));
    if (!failure_.empty()) throw CommError(failure_for(rank, sequence));
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

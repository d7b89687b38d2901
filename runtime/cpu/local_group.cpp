#include "runtime/cpu/local_group.h"

#include "runtime/error.h"

namespace zg::cpu {

std::string Call::text() const {
  return std::string(name_of(op)) + " of '" + name + "' (" + name_of(dtype) + ", " +
         std::to_string(count) + " elements)";
}

namespace {

std::string named(const Call& call, int64_t sequence) {
  return "collective #" + std::to_string(sequence) + ", " + call.text();
}

}  // namespace

bool Call::agrees(const Call& other) const {
  return op == other.op && dtype == other.dtype && count == other.count && name == other.name;
}

LocalGroup::LocalGroup(int size, double timeout_s)
    : size_(size), timeout_(timeout_s), members_(static_cast<size_t>(size)) {}

std::string LocalGroup::where(const Member& member, int64_t sequence) const {
  return named(member.call, sequence) + ", in step " + std::to_string(member.step);
}

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
                                                 where(self, sequence)
                                           : ""));
    const Member& late = members_[static_cast<size_t>(peer)];
    if (late.left && late.arrived < sequence) {
      fail("rank " + std::to_string(peer) + " returned early, in step " +
           std::to_string(late.step) + "; the others are at " + where(self, sequence) +
           "; every rank must make the same calls");
      continue;
    }
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && failure_.empty() &&
        missing() >= 0) {
      std::string ranks;
      for (int r = 0; r < size_; ++r)
        if (members_[static_cast<size_t>(r)].*progress < sequence)
          ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%.3g", timeout_.count());
      fail("rank " + ranks + " did not " + verb + " within " + seconds + " s: " +
           where(self, sequence) + "; look at what that rank is doing, or raise --comm-timeout");
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
  for (int peer = 0; peer < size_; ++peer) {
    const Member& other = members_[static_cast<size_t>(peer)];
    if (other.call.agrees(self.call)) continue;
    fail("ranks disagree at collective #" + std::to_string(sequence) + " in step " +
         std::to_string(self.step) + ": rank " + std::to_string(rank) + " calls " +
         self.call.text() + ", rank " + std::to_string(peer) + " calls " + other.call.text() +
         "; every rank must make the same calls");
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
    fail("rank " + std::to_string(rank) + " failed in step " + std::to_string(self.step) +
         (self.arrived >= 0 ? ", after " + named(self.call, self.arrived)
                            : ", before any collective") +
         ": " + cause);
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

#include "zerograd/runtime/comm/local_world.h"

#include <algorithm>
#include <utility>

#include "zerograd/runtime/comm/pace.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cpu {

// --- LocalGroup ---

LocalGroup::LocalGroup(LocalWorld& world, Members members,
                       std::shared_ptr<const Transports> transports)
    : world_(world),
      members_(std::move(members)),
      transports_(std::move(transports)),
      each_(members_.ranks.size()) {
  for (int member = 0; member < members_.size(); ++member)
    at(member).log =
        std::make_shared<CollectiveLog>(members_[member], world_.size(), members_.group);
}

int LocalGroup::member_of(int rank) const {
  const auto found = std::ranges::find(members_.ranks, rank);
  return static_cast<int>(found - members_.ranks.begin());
}

bool LocalGroup::join(int rank) {
  Member& self = at(member_of(rank));
  if (self.joined && !self.left)
    raise<ConfigError>("group '{}': rank {} is in it already; expected a new name", members_.group,
                       rank);
  return !std::exchange(self.joined, true);
}

bool LocalGroup::leave(int member, bool fails) {
  at(member).left = true;
  at(member).fails = fails;
  changed_.notify_all();
  return std::ranges::all_of(each_, [](const Member& other) { return other.left; });
}

LocalGroup::Clock::time_point LocalGroup::deadline() const {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(world_.timeout_);
}

bool LocalGroup::all_have(int64_t Member::*progress, int64_t sequence) const {
  return std::ranges::all_of(each_,
                             [&](const Member& other) { return other.*progress >= sequence; });
}

std::vector<int> LocalGroup::missing_ranks(int64_t Member::*progress, int64_t sequence) const {
  std::vector<int> ranks;
  for (int member = 0; member < members_.size(); ++member)
    if (at(member).*progress < sequence) ranks.push_back(members_[member]);
  return ranks;
}

Activity LocalGroup::activity(int rank) const {
  const int member = member_of(rank);
  const int64_t sequence = at(member).arrived;
  Activity activity{.awaits = missing_ranks(&Member::arrived, sequence),
                    .place = place_of(member),
                    .last_progress = std::max(at(member).alive, at(member).last_device_wait)};
  if (activity.awaits.empty() && at(member).done == sequence) {
    activity.awaits = missing_ranks(&Member::done, sequence);
    activity.verb = "finish";
  }
  return activity;
}

void LocalGroup::add_running(std::vector<int>& ranks) const {
  for (int member = 0; member < members_.size(); ++member)
    if (at(member).arrived > at(member).done &&
        missing_ranks(&Member::arrived, at(member).arrived).empty())
      ranks.push_back(members_[member]);
}

std::string LocalGroup::place_of(int member) const {
  const Member& self = at(member);
  return where(self.call, self.arrived, members_.group, *world_.at(members_[member]).step);
}

// Adds the place of this rank where the failure does not contain it.
std::string LocalGroup::failure_for(int member) const {
  const std::string place = place_of(member);
  if (place == world_.failed_at_) return world_.failure_;
  return fmt::format("{}; rank {} waits in {}", world_.failure_, members_[member], place);
}

void LocalGroup::check_for_early_return(int member, int64_t sequence) {
  for (int peer = 0; peer < members_.size(); ++peer) {
    const Member& other = at(peer);
    const LocalWorld::Rank& rank = world_.at(members_[peer]);
    if (other.arrived >= sequence || other.fails || !(other.left || rank.left)) continue;
    const std::string place = place_of(member);
    return world_.fail(early_return(members_[peer], *rank.step, place), place);
  }
}

void LocalGroup::await(Lock& lock, int member, int64_t sequence, int64_t Member::*progress) {
  const auto began = Clock::now();
  auto deadline = this->deadline();
  const auto done = [&] { return all_have(progress, sequence); };
  // Only the last member wakes the others: with one wake-up for each, those that find others
  // missing would sleep again.
  if (done()) changed_.notify_all();
  for (;;) {
    // Checked before failures: a collective that every rank has finished succeeds on all of them.
    if (done()) return;
    if (!world_.failure_.empty()) throw CommError(failure_for(member));
    if (at(member).fails) raise<CommError>("{}: this rank has failed", place_of(member));
    check_for_early_return(member, sequence);
    if (!world_.failure_.empty()) continue;
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && !done() &&
        world_.failure_.empty())
      deadline = world_.extend_or_fail(activity(members_[member]), began);
  }
}

void LocalGroup::await(int member, int64_t sequence, Clock::time_point deadline,
                       const std::function<bool()>& done) {
  Member& self = at(member);
  for (Pace pace(1000); !done(); pace.rest()) {
    const Lock lock(world_.mutex_);
    self.last_device_wait = Clock::now();
    if (world_.failure_.empty() && self.last_device_wait > deadline) {
      // The ranks that were not seen waiting lately, if there are any: the others wait for them.
      std::vector<int> ranks = missing_ranks(&Member::done, sequence);
      const auto recently = self.last_device_wait - std::chrono::milliseconds(500);
      const auto silent = [&](int rank) { return at(member_of(rank)).last_device_wait < recently; };
      if (std::ranges::any_of(ranks, silent))
        std::erase_if(ranks, [&](int rank) { return !silent(rank); });
      const std::string place = place_of(member);
      world_.fail(absence(ranks, "finish", world_.timeout_.count(), place), place);
    }
    if (!world_.failure_.empty()) throw CommError(failure_for(member));
    if (self.fails) raise<CommError>("{}: this rank has failed", place_of(member));
  }
}

// Looks at all pairs, so that every member reports the same one.
void LocalGroup::check_pieces(int member) {
  const auto of = [](const std::vector<int64_t>& counts, int m) {
    return counts[static_cast<size_t>(m)];
  };
  for (int from = 0; from < members_.size(); ++from)
    for (int to = 0; to < members_.size(); ++to) {
      const int64_t sent = of(call_of(from).sends, to), expected = of(call_of(to).receives, from);
      if (sent == expected) continue;
      const std::string place = place_of(member);
      world_.fail(unequal_pieces(members_[from], sent, members_[to], expected, place), place);
      throw CommError(world_.failure_);
    }
}

void LocalGroup::meet(int member, int64_t sequence, Call call,
                      const std::function<void()>& action) {
  Lock lock(world_.mutex_);
  Member& self = at(member);
  LocalWorld::Rank& rank = world_.at(members_[member]);
  self.call = std::move(call);
  self.arrived = sequence;
  rank.last = named(self.call, sequence, members_.group);
  await(lock, member, sequence, &Member::arrived);
  const auto agrees = [&](const Member& other) { return other.call.agrees(self.call); };
  if (!std::ranges::all_of(each_, agrees)) {
    std::vector<Call> calls;
    for (const Member& other : each_) calls.push_back(other.call);
    world_.fail(disagreement(sequence, members_, *rank.step, calls), place_of(member));
    throw CommError(world_.failure_);
  }
  if (self.call.exchanges_pieces()) check_pieces(member);
  self.alive = Clock::now();
  lock.unlock();
  action();
  lock.lock();
  self.done = sequence;
  await(lock, member, sequence, &Member::done);
  self.alive = Clock::now();
  self.call.input = {};
}

// --- LocalWorld ---

LocalWorld::LocalWorld(int size, double timeout_s)
    : timeout_(timeout_s),
      ranks_(static_cast<size_t>(size)),
      saw_failure_(static_cast<size_t>(size)) {}

LocalWorld::~LocalWorld() = default;

std::shared_ptr<LocalGroup> LocalWorld::join(int rank, const Members& members,
                                             const MakeTransports& make) {
  const Lock lock(mutex_);
  for (const auto& group : groups_) {
    const Members& others = group->members();
    if (others.group == members.group && others.ranks == members.ranks && group->join(rank))
      return group;
  }
  groups_.push_back(std::make_shared<LocalGroup>(*this, members, make(members)));
  groups_.back()->join(rank);
  return groups_.back();
}

void LocalWorld::leave(LocalGroup& group, int member, bool fails) noexcept {
  std::shared_ptr<LocalGroup> ended;  // outlives the lock
  const Lock lock(mutex_);
  if (group.members().group.empty()) at(group.members()[member]).left = true;
  for (const auto& other : groups_) other->changed_.notify_all();
  // After a failure peers may still read what it holds.
  if (!group.leave(member, fails) || !failure_.empty()) return;
  const auto found =
      std::ranges::find_if(groups_, [&](const auto& other) { return other.get() == &group; });
  if (found == groups_.end()) return;
  ended = std::move(*found);
  groups_.erase(found);
}

void LocalWorld::set_waits_in(int rank, const LocalGroup* group) {
  const Lock lock(mutex_);
  at(rank).waits_in = group;
  if (!group) at(rank).alive = Clock::now();
}

void LocalWorld::set_waits_for_collectives(int rank, bool waits) {
  const Lock lock(mutex_);
  at(rank).waits_for_collectives = waits;
  at(rank).alive = Clock::now();
}

void LocalWorld::fail(const std::string& cause, const std::string& place) {
  if (failure_.empty()) {
    failure_ = cause;
    failed_at_ = place;
  }
  for (const auto& group : groups_) group->changed_.notify_all();
}

void LocalWorld::abort(int rank, const std::string& cause) noexcept {
  try {
    const Lock lock(mutex_);
    fail(failure_of(rank, *at(rank).step, at(rank).last, cause), "");
  } catch (...) {
    for (const auto& group : groups_) group->changed_.notify_all();
  }
}

bool LocalWorld::failed() const {
  const Lock lock(mutex_);
  return !failure_.empty();
}

std::string LocalWorld::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

void LocalWorld::dump_logs() const {
  std::vector<std::shared_ptr<LocalGroup>> groups;
  {
    const Lock lock(mutex_);
    groups = groups_;
  }
  for (const auto& group : groups)
    for (int member = 0; member < group->members().size(); ++member) group->log(member)->dump();
}

Activity LocalWorld::activity(int rank) const {
  const Rank& self = at(rank);
  Activity activity = self.waits_in ? self.waits_in->activity(rank) : Activity{};
  if (self.waits_for_collectives && activity.awaits.empty())
    for (const auto& group : groups_) group->add_running(activity.awaits);
  activity.last_progress = std::max(activity.last_progress, self.alive);
  return activity;
}

LocalWorld::Clock::time_point LocalWorld::extend_or_fail(const Activity& waiting,
                                                         Clock::time_point began) {
  const auto now = Clock::now();
  const auto timeout = std::chrono::duration_cast<Clock::duration>(timeout_);
  std::vector<Activity> ranks;
  ranks.reserve(static_cast<size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) ranks.push_back(activity(rank));
  // A rank may be late only because it waited for another late rank. It gets more time, but all
  // waiting together is limited to one timeout per rank.
  const bool is_at_limit = now > began + timeout * size();
  const Blame found = blame(waiting, ranks, is_at_limit ? now : now - timeout);
  if (!found.ranks.empty())
    fail(absence(found.ranks, found.verb, timeout_.count(), found.place), found.place);
  else if (!found.last_progress)
    fail(deadlock(ranks), "");
  return found.last_progress.value_or(now) + timeout;
}

}  // namespace zg::cpu

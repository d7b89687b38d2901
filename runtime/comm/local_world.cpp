#include "zerograd/runtime/comm/local_world.h"

#include <algorithm>

#include "zerograd/runtime/error.h"

namespace zg::cpu {

LocalWorld::LocalWorld(int size, double timeout_s)
    : timeout_(timeout_s), ranks_(static_cast<size_t>(size)) {}

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
  const auto place = std::find_if(groups_.begin(), groups_.end(),
                                  [&](const auto& other) { return other.get() == &group; });
  if (place == groups_.end()) return;
  ended = std::move(*place);
  groups_.erase(place);
}

void LocalWorld::waits(int rank, const LocalGroup* group) {
  const Lock lock(mutex_);
  at(rank).waits_in = group;
  if (!group) at(rank).alive = Clock::now();
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
  const Rank& own = at(rank);
  Activity activity = own.waits_in ? own.waits_in->activity(rank) : Activity{};
  activity.alive = std::max(activity.alive, own.alive);
  return activity;
}

LocalWorld::Clock::time_point LocalWorld::late(const Activity& waiting, Clock::time_point began) {
  const auto now = Clock::now();
  const auto patience = std::chrono::duration_cast<Clock::duration>(timeout_);
  std::vector<Activity> ranks;
  for (int rank = 0; rank < size(); ++rank) ranks.push_back(activity(rank));
  // A rank may be late only because it waited for another late rank. It gets more time, but all
  // waiting together is limited to one timeout per rank.
  const bool endless = now > began + patience * size();
  const Blame found = blame(waiting, ranks, endless ? now : now - patience);
  if (!found.ranks.empty())
    fail(absence(found.ranks, found.verb, timeout_.count(), found.place), found.place);
  else if (!found.alive)
    fail(ring(ranks), "");
  return found.alive.value_or(now) + patience;
}

}  // namespace zg::cpu

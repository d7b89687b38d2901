#include "zerograd/runtime/comm/mpi_world.h"

#include <algorithm>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/random.h"

namespace zg::cpu {
namespace {

const char* verb_of(const Meeting& meeting) { return meeting.arriving ? "arrive" : "finish"; }

// Identifies a new group among its members until it has a number.
int64_t hash_of(const Members& members) {
  std::string text = members.group;
  for (const int rank : members.ranks) text += "," + std::to_string(rank);
  return static_cast<int64_t>(hash_name(text.c_str()));
}

}  // namespace

MpiGroup::MpiGroup(int64_t group_number, Members all, int rank, int ranks)
    : number(group_number),
      members(std::move(all)),
      each(members.ranks.size()),
      log(std::make_shared<CollectiveLog>(rank, ranks, members.group)) {
  for (int member = 0; member < members.size(); ++member)
    if (members[member] == rank)
      own_member = member;
    else
      others.push_back(member);
}

MpiWorld::MpiWorld(const ProcessRank& place, const ProcessOptions& options)
    : rank_(place.rank),
      size_(place.size),
      timeout_(options.timeout_s),
      told_to_end_(options.told_to_end),
      peers_(static_cast<size_t>(place.size)),
      all_(std::make_shared<MpiGroup>(0, all_ranks(place.size), place.rank, place.size)) {
  others_ = all_->others;
  groups_.push_back(all_);
}

MpiWorld::Lock MpiWorld::enter() {
  ++entering_;
  Lock lock(mutex_);
  --entering_;
  return lock;
}

// --- begin and end

std::vector<RankIdentity> MpiWorld::connect(RankIdentity own) {
  {
    const Lock lock = enter();
    serialized_ = wire::start(size_);
  }
  is_up_ = true;
  std::vector<RankIdentity> identities(peers_.size(), own);
  const auto bytes_of = [](RankIdentity& identity) {
    return std::as_writable_bytes(std::span(&identity, 1));
  };
  Meeting meeting{.group = all_.get(), .deadline = deadline()};
  exchange(
      meeting, identity_tag, [&](int) { return bytes_of(own); },
      [&](int peer) { return bytes_of(identities[index_of(peer)]); });
  const Lock lock = enter();
  for (const int peer : others_) {
    Peer& other = peers_[index_of(peer)];
    other.process = identities[index_of(peer)].process;
    other.visible = own.process.same_host(other.process) && other.process.alive();
    receive(other);
  }
  return identities;
}

void MpiWorld::leave() {
  {
    Lock lock = enter();
    post_and_wait(lock, {.kind = Notice::Kind::left, .step = *step_}, others_, timeout());
  }
  Meeting meeting{.group = all_.get(), .deadline = deadline()};
  meeting.awaited = [this](int peer) { return !peers_[index_of(peer)].left; };
  await_members(meeting, 0);
  const Lock lock = enter();
  for (Peer& peer : peers_) wire::cancel(peer.receiving);
  wire::stop();
}

std::shared_ptr<MpiGroup> MpiWorld::make_group(Members members) {
  const int64_t hash = hash_of(members);
  const auto group = std::make_shared<MpiGroup>(0, std::move(members), rank_, size_);
  const std::string& name = group->members.group;
  {
    const Lock lock = enter();
    if (!serialized_)
      raise<Unsupported>(
          "group '{}': {} does not support MPI_THREAD_SERIALIZED, which groups of "
          "processes need; try ranks as threads, or another MPI",
          name, mpi_version());
    for (const auto& other : groups_)
      if (other->members.group == name && other->members.ranks == group->members.ranks)
        raise<ConfigError>("group '{}': rank {} is in it already; expected a new name", name,
                           rank_);
    group->number = next_number_;
    Notice notice{
        .kind = Notice::Kind::new_group, .group = hash, .step = *step_, .count = group->number};
    notice.set_text(name);
    post(notice, ranks_of(*group, group->others));
  }
  Meeting meeting{.group = group.get(),
                  .place = fmt::format("the making of group '{}'", name),
                  .arriving = true,
                  .deadline = deadline()};
  meeting.awaited = [&](int member) { return new_groups_[{hash, group->members[member]}].empty(); };
  {
    struct Owner {
      MpiWorld& world;
      ~Owner() { world.owner_waits(nullptr); }
    };
    const Owner owner{*this};
    owner_waits(group.get());
    await_members(meeting, 50);
  }
  const Lock lock = enter();
  for (const int member : group->others) {
    const std::pair key(hash, group->members[member]);
    group->number = std::max(group->number, new_groups_[key].front());
    new_groups_[key].pop_front();
    if (new_groups_[key].empty()) new_groups_.erase(key);
  }
  next_number_ = group->number + 1;
  groups_.push_back(group);
  std::erase_if(early_notices_, [&](const auto& early) {
    return early.second.group == group->number && process_in_group(early.first, early.second);
  });
  return group;
}

void MpiWorld::leave(const std::shared_ptr<MpiGroup>& group, bool fails) noexcept {
  try {
    const Lock lock = enter();
    group->fails = fails;
    for (Meeting* meeting : waiting_) meeting->woken.notify_one();
    if (fails || !cause_of_end_.empty()) return;
    post({.kind = Notice::Kind::left, .group = group->number, .step = *step_},
         ranks_of(*group, group->others));
    std::erase(groups_, group);
    ended_groups_.insert(group->number);
  } catch (...) {  // MPI cannot send any more; the peers will report this rank as gone or late
    return;
  }
}

// --- meetings

void MpiWorld::arrive(Meeting& meeting) {
  MpiGroup& group = *meeting.group;
  const Call& call = *meeting.call;
  Notice notice{.kind = Notice::Kind::arrived,
                .group = group.number,
                .sequence = meeting.sequence,
                .step = *step_,
                .count = call.count,
                .root = call.root,
                .op = call.op,
                .dtype = call.dtype};
  notice.set_text(call.name);
  {
    const Lock lock = enter();
    last_ = named(call, meeting.sequence, group.members.group);
    if (call.exchanges_pieces())
      for (const int member : group.others) {
        notice.count = call.sends[index_of(member)];
        post(notice, {group.members[member]});
      }
    else
      post(notice, ranks_of(group, group.others));
  }
  meeting.arriving = true;
  meeting.deadline = deadline();
  meeting.awaited = [&](int member) { return group.at(member).arrivals.empty(); };
  await_members(meeting, 50);
  Lock lock = enter();
  std::vector<Call> calls(group.each.size());
  // Not `call` itself, because the peers' names are truncated to the size of a notice.
  calls[index_of(group.own_member)] = notice.call();
  for (const int member : group.others) {
    calls[index_of(member)] = group.at(member).arrivals.front().call();
    group.at(member).arrivals.pop_front();
  }
  for (const Call& other : calls)
    if (!other.agrees(calls[index_of(group.own_member)]))
      fail(lock, meeting, disagreement(meeting.sequence, group.members, *step_, calls));
  for (const int member : call.exchanges_pieces() ? group.others : std::vector<int>())
    if (const int64_t sent = calls[index_of(member)].count,
        expected = call.receives[index_of(member)];
        sent != expected)
      fail(lock, meeting,
           unequal_pieces(group.members[member], sent, rank_, expected, place_of(meeting)));
  meeting.arriving = false;
}

void MpiWorld::exchange(Meeting& meeting, int tag, const Out& out, const In& in) {
  const MpiGroup& group = *meeting.group;
  size_t bytes = 0;
  std::vector<wire::Message> sends(group.each.size()), receives(sends);
  {
    const Lock lock = enter();
    for (const int member : group.others) {
      const int rank = group.members[member];
      const std::span<std::byte> to = in(member);
      const std::span<const std::byte> from = out(member);
      if (!to.empty())
        receives[index_of(member)] = wire::receive(rank, tag, to.data(), std::ssize(to));
      if (!from.empty())
        sends[index_of(member)] = wire::send(rank, tag, from.data(), std::ssize(from));
      bytes = std::max({bytes, to.size(), from.size()});
    }
  }
  meeting.awaited = [&](int member) {
    const bool received = wire::complete(receives[index_of(member)]);
    return !wire::complete(sends[index_of(member)]) || !received;
  };
  // All members are in this exchange or, in connect(), soon will be. The transfer makes progress
  // only while MPI is called, so check many times before sleeping.
  await_members(meeting, 1000 + static_cast<int64_t>(bytes / 1024));
}

void MpiWorld::await_members(Meeting& meeting, int64_t yields) {
  Lock lock = enter();
  struct Waits {
    MpiWorld& world;
    Meeting& meeting;
    ~Waits() {
      world.waiting_.remove(&meeting);
      meeting.group->alive = Clock::now();
      if (!world.waiting_.empty()) world.waiting_.back()->woken.notify_one();
    }
  };
  waiting_.push_back(&meeting);
  const Waits waits{*this, meeting};
  Pace pace(yields);
  for (Clock::time_point last_check = Clock::now();;) {
    process_notices();
    const Clock::time_point now = Clock::now();
    // If more than `stopped_threshold` has passed since the last check, this process itself was
    // stopped. Then the deadline moves, so that it reads its peers' messages before it reports a
    // peer as late.
    if (now > last_check + stopped_threshold) {
      meeting.deadline = std::max(meeting.deadline, now + stopped_threshold);
      meeting.early_question = meeting.final_question = {};
    }
    last_check = now;
    if (is_over(meeting)) return;
    throw_known_failure(meeting);
    if (meeting.group->fails) throw CommError(place_of(meeting) + ": this rank has failed");
    if (aborts_) throw_own_failure(lock, own_cause_);
    check_for_early_return(lock, meeting);
    check_for_dead(lock, meeting, ranks_of(*meeting.group, meeting.missing));
    check_deadline(lock, meeting, now);
    if (!meeting.by_transport && waiting_.back() != &meeting) {
      meeting.woken.wait_for(lock, liveness_check_interval);
      continue;
    }
    for (Meeting* other : waiting_)
      if (other != &meeting && !other->by_transport && is_over(*other)) other->woken.notify_one();
    lock.unlock();
    if (entering_ > 0)
      std::this_thread::sleep_for(20us);
    else
      pace.rest();
    lock.lock();
  }
}

bool MpiWorld::is_over(Meeting& meeting) {
  meeting.missing.clear();
  for (const int member : meeting.group->others)
    if (meeting.awaited(member)) meeting.missing.push_back(member);
  return meeting.missing.empty();
}

void MpiWorld::finished(MpiGroup& group, int64_t sequence) {
  const Lock lock = enter();
  group.finished = sequence;
}

void MpiWorld::watch() {
  Lock lock = enter();
  const Meeting computing{.group = all_.get()};
  process_notices();
  throw_known_failure(computing);
  if (aborts_) throw_own_failure(lock, own_cause_);
  check_for_dead(lock, computing, others_);
}

// --- late, ended and dead peers

void MpiWorld::check_for_early_return(Lock& lock, const Meeting& meeting) {
  for (const int member : meeting.missing) {
    const int rank = meeting.group->members[member];
    const Peer& peer = peers_[index_of(rank)];
    if (meeting.arriving && (meeting.group->at(member).left || peer.left))
      fail(lock, meeting, early_return(rank, peer.step, place_of(meeting)));
  }
}

/// A peer whose process two checks did not find is dead. By the second check, all messages that the
/// peer sent have been received.
void MpiWorld::check_for_dead(Lock& lock, const Meeting& meeting, const std::vector<int>& ranks) {
  if (Clock::now() < checked_alive_ + liveness_check_interval) return;
  checked_alive_ = Clock::now();
  for (const int rank : ranks) {
    Peer& other = peers_[index_of(rank)];
    if (!other.visible || other.left || other.process.alive()) continue;
    if (++other.misses < 2) continue;
    fail(lock, meeting, gone(rank, other) + activity_now(meeting));
  }
}

void MpiWorld::check_deadline(Lock& lock, Meeting& meeting, Clock::time_point now) {
  if (soon_killed(now))
    fail(
        lock, meeting,
        unfinished(ranks_of(*meeting.group, meeting.missing), verb_of(meeting), place_of(meeting)));
  if (meeting.by_transport) return check_deadline_of_transport(lock, meeting, now);
  // Before the deadline, a first question (a notice to all ranks) shows which ranks are stopped:
  // those that do not answer in time. At the deadline, a second question asks what the other ranks
  // do.
  if (now < meeting.deadline - std::min<Clock::duration>(answer_timeout, timeout() / 2)) return;
  const auto ask = [&](Meeting::Question& question) {
    question = {.number = ++questions_, .asked = now};
    post({.kind = Notice::Kind::question, .sequence = question.number, .step = *step_}, others_);
  };
  if (meeting.early_question.number == 0) return ask(meeting.early_question);
  if (now <= meeting.deadline) return;
  if (meeting.final_question.number == 0) return ask(meeting.final_question);
  const auto has_answered = [&](int rank) {
    return peers_[index_of(rank)].answered >= meeting.final_question.number;
  };
  // The rank has answered, or it is stopped: it did not answer the first question in time.
  const auto is_settled = [&](int rank) {
    return has_answered(rank) || (peers_[index_of(rank)].answered < meeting.early_question.number &&
                                  now >= meeting.early_question.asked + answer_timeout);
  };
  if (now < meeting.final_question.asked + answer_timeout &&
      !std::ranges::all_of(others_, is_settled))
    return;
  // A rank that has not answered keeps a default Activity: blame() treats it as a rank that does
  // not wait and has made no progress.
  std::vector<Activity> ranks(peers_.size());
  for (const int rank : others_)
    if (has_answered(rank)) ranks[index_of(rank)] = peers_[index_of(rank)].activity;
  ranks[index_of(rank_)] = activity();
  // A rank may be late only because it waited for another late rank. Then the deadline moves, but
  // one wait lasts at most one timeout multiplied by the number of ranks.
  const bool is_at_limit = now > meeting.began + timeout() * size_;
  const Blame found = blame({.awaits = ranks_of(*meeting.group, meeting.missing),
                             .verb = verb_of(meeting),
                             .place = place_of(meeting)},
                            ranks, is_at_limit ? now : now - timeout());
  if (!found.ranks.empty())
    fail(lock, meeting, absence(found.ranks, found.verb, timeout_.count(), found.place));
  if (!found.last_progress) fail(lock, meeting, deadlock(ranks));
  meeting.deadline = *found.last_progress + timeout();
  meeting.early_question = meeting.final_question = {};
}

/// When the deadline of one member has passed, every member that waits in this collective announces
/// it once (Notice::Kind::waits). The awaited members that have announced nothing are reported as
/// missing. If all awaited members have announced it, all of them and this rank are reported.
void MpiWorld::check_deadline_of_transport(Lock& lock, Meeting& meeting, Clock::time_point now) {
  MpiGroup& group = *meeting.group;
  const auto waits = [&](int member) { return group.at(member).waits_in >= meeting.sequence; };
  const bool asked = std::ranges::any_of(group.others, waits);
  if (group.wait_announced < meeting.sequence && (now > meeting.deadline || asked)) {
    group.wait_announced = meeting.sequence;
    post({.kind = Notice::Kind::waits,
          .group = group.number,
          .sequence = meeting.sequence,
          .step = *step_},
         ranks_of(group, group.others));
    meeting.deadline = std::max(meeting.deadline, now + stopped_threshold);
  }
  if (now <= (meeting.missing.size() > 1 ? meeting.deadline + stopped_threshold : meeting.deadline))
    return;
  std::vector<int> missing = meeting.missing;
  if (std::ranges::all_of(missing, waits))
    missing.insert(std::ranges::lower_bound(missing, group.own_member), group.own_member);
  else
    std::erase_if(missing, waits);
  fail(lock, meeting,
       absence(ranks_of(group, missing), verb_of(meeting), timeout_.count(), place_of(meeting)));
}

// True when the launcher told this process to end more than `failure_grace` ago and may kill it
// soon. The failure must be reported before that.
bool MpiWorld::soon_killed(Clock::time_point now) {
  if (!told_to_end_ || !told_to_end_()) return false;
  if (warned_at_ == Clock::time_point{}) warned_at_ = now;
  return now > warned_at_ + failure_grace;
}

void MpiWorld::owner_waits(MpiGroup* group) {
  const std::lock_guard lock(owner_mutex_);
  owner_waits_in_ = group;
  if (!group) owner_alive_ = Clock::now();
}

Activity MpiWorld::activity() {
  const std::lock_guard lock(owner_mutex_);
  if (!owner_waits_in_) return {.last_progress = owner_alive_};
  // For a transport, check_deadline_of_transport() finds the missing members.
  for (const Meeting* meeting : waiting_)
    if (meeting->by_transport && meeting->group == owner_waits_in_)
      return {.last_progress = Clock::now()};
    else if (meeting->group == owner_waits_in_)
      return {.awaits = ranks_of(*meeting->group, meeting->missing),
              .verb = verb_of(*meeting),
              .place = place_of(*meeting),
              .last_progress = Clock::now()};
  return {.last_progress = std::max(owner_alive_, owner_waits_in_->alive)};
}

}  // namespace zg::cpu

// MpiWorld: control messages between processes, and how a failure of one rank ends all ranks.
#include <algorithm>
#include <sstream>

#include "zerograd/runtime/comm/mpi_world.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cpu {
namespace {

// "arrive 2 5\ncollective #3, ...": what the rank's own thread waits for, and where.
std::string text_of(const Activity& activity) {
  constexpr size_t most = 50;  // ranks; the text of a notice is limited
  std::string text = activity.verb;
  for (size_t i = 0; i < std::min(most, activity.awaits.size()); ++i)
    text += " " + std::to_string(activity.awaits[i]);
  return text + "\n" + activity.place;
}

Activity activity_of(const std::string& text, int ranks) {
  const size_t line = std::min(text.find('\n'), text.size());
  std::istringstream words(text.substr(0, line));
  Activity activity{.place = text.substr(std::min(line + 1, text.size()))};
  std::string verb;
  words >> verb;
  if (verb == "finish") activity.verb = "finish";
  for (int rank; words >> rank;)
    if (rank >= 0 && rank < ranks) activity.awaits.push_back(rank);
  return activity;
}

}  // namespace

std::vector<int> MpiWorld::ranks_of(const MpiGroup& group, const std::vector<int>& members) {
  std::vector<int> ranks;
  ranks.reserve(members.size());
  for (const int member : members) ranks.push_back(group.members[member]);
  return ranks;
}

std::string MpiWorld::place_of(const Meeting& meeting) const {
  return meeting.call ? where(*meeting.call, meeting.sequence, meeting.group->members.group, *step_)
                      : meeting.place;
}

std::string MpiWorld::activity_now(const Meeting& meeting) const {
  const std::string rank = fmt::format("; rank {}", rank_);
  if (meeting.call || meeting.arriving)
    return fmt::format("{} waits in {}", rank, place_of(meeting));
  return fmt::format(
      "{}{}, in step {}", rank,
      last_.empty() ? " computes before its first collective" : " computes after " + last_, *step_);
}

// --- notices

void MpiWorld::receive(Peer& from) {
  const int peer = static_cast<int>(&from - peers_.data());
  from.receiving = wire::receive(peer, notice_tag, &from.incoming, sizeof from.incoming);
}

void MpiWorld::process_notices() {
  for (Peer& peer : peers_)
    while (peer.receiving.pending && wire::complete(peer.receiving)) {
      process(static_cast<int>(&peer - peers_.data()), peer.incoming);
      receive(peer);
    }
}

void MpiWorld::process(int rank, const Notice& notice) {
  Peer& from = peers_[index_of(rank)];
  from.step = notice.step;
  switch (notice.kind) {
    case Notice::Kind::new_group:
      return new_groups_[{notice.group, rank}].push_back(notice.count);
    case Notice::Kind::question: {
      const Activity own = activity();
      const auto silent =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - own.last_progress);
      Notice answer{.kind = Notice::Kind::answer,
                    .sequence = notice.sequence,
                    .step = *step_,
                    .count = silent.count()};
      answer.set_text(text_of(own));
      post(answer, {rank});
      return;
    }
    case Notice::Kind::answer:
      from.answered = notice.sequence;
      from.activity = activity_of(notice.text, size_);
      from.activity.last_progress = Clock::now() - std::chrono::milliseconds(notice.count);
      return;
    case Notice::Kind::failed:
    case Notice::Kind::aborted:
      if (!cause_of_end_.empty()) return;
      cause_of_end_ = notice.text;
      adds_place_ = notice.kind == Notice::Kind::aborted;
      failed_group_ = notice.group;
      failed_sequence_ = notice.sequence;
      return;
    case Notice::Kind::left:
      if (notice.group == 0) from.left = true;
      break;
    case Notice::Kind::arrived:
    case Notice::Kind::waits:
    case Notice::Kind::ended:
      break;
  }
  if (!process_in_group(rank, notice) && !ended_groups_.contains(notice.group))
    early_notices_.emplace_back(rank, notice);
}

/// False: there is no such group here.
bool MpiWorld::process_in_group(int rank, const Notice& notice) {
  for (const auto& group : groups_) {
    if (group->number != notice.group) continue;
    const auto& ranks = group->members.ranks;
    const auto found = std::ranges::find(ranks, rank);
    if (found == ranks.end()) continue;  // the number is unique per pair of ranks only
    MpiGroup::Member& member = group->at(static_cast<int>(found - ranks.begin()));
    if (notice.kind == Notice::Kind::arrived) member.arrivals.push_back(notice);
    if (notice.kind == Notice::Kind::waits) member.waits_in = notice.sequence;
    if (notice.kind == Notice::Kind::ended) member.ended_after = notice.sequence;
    if (notice.kind == Notice::Kind::left) member.left = true;
    return true;
  }
  return false;
}

MpiWorld::Outgoing& MpiWorld::post(const Notice& notice, const std::vector<int>& ranks) {
  std::erase_if(outgoing_, [](Outgoing& old) { return !old.awaited && is_sent(old); });
  Outgoing& outgoing = outgoing_.emplace_back(Outgoing{.notice = notice});
  for (const int rank : ranks)
    outgoing.messages.push_back(
        wire::send(rank, notice_tag, &outgoing.notice, outgoing.notice.bytes()));
  return outgoing;
}

bool MpiWorld::is_sent(Outgoing& outgoing) {
  return std::ranges::all_of(outgoing.messages, wire::complete);
}

void MpiWorld::post_and_wait(Lock& lock, const Notice& notice, const std::vector<int>& ranks,
                             Clock::duration longest) {
  const Clock::time_point end = Clock::now() + longest;
  Outgoing& outgoing = post(notice, ranks);
  outgoing.awaited = true;
  for (Pace pace(50); !is_sent(outgoing) && Clock::now() < end;) {
    lock.unlock();
    pace.rest();
    lock.lock();
  }
  outgoing.awaited = false;
}

// --- failures

void MpiWorld::throw_known_failure(const Meeting& meeting) {
  if (cause_of_end_.empty()) return;
  // This collective succeeds on all ranks when a member finished it before that member failed.
  const auto& each = meeting.group->each;
  if (meeting.sequence >= 0 && std::ranges::any_of(each, [&](const MpiGroup::Member& member) {
        return member.ended_after >= meeting.sequence;
      }))
    return;
  const bool elsewhere = meeting.call && (meeting.group->number != failed_group_ ||
                                          meeting.sequence != failed_sequence_);
  raise<CommError>("{}{}", cause_of_end_, adds_place_ || elsewhere ? activity_now(meeting) : "");
}

void MpiWorld::throw_peer_failure(const Meeting& meeting) {
  const Lock lock = enter();
  throw_known_failure(meeting);
}

void MpiWorld::abort(const std::string& cause) {
  const Lock lock = enter();
  own_cause_ = cause;
  aborts_ = true;
  for (Meeting* meeting : waiting_) meeting->woken.notify_one();
}

void MpiWorld::throw_own_failure(const std::string& cause) {
  Lock lock = enter();
  throw_own_failure(lock, cause);
}

void MpiWorld::throw_own_failure(Lock& lock, const std::string& cause) {
  const std::string text = failure_of(rank_, *step_, last_, cause);
  announce_failure(lock, Notice::Kind::aborted, nullptr, text);
  throw CommError(text);
}

void MpiWorld::failed(const std::exception_ptr& error) {
  if (is_comm_error(error)) return;
  Lock lock = enter();
  announce_failure(lock, Notice::Kind::aborted, nullptr,
                   failure_of(rank_, *step_, last_, describe(error)));
}

void MpiWorld::fail(Lock& lock, const Meeting& meeting, const std::string& text) {
  announce_failure(lock, Notice::Kind::failed, &meeting, text);
  throw CommError(text);
}

void MpiWorld::announce_failure(Lock& lock, Notice::Kind kind, const Meeting* meeting,
                                const std::string& text) {
  if (!cause_of_end_.empty()) return;
  cause_of_end_ = text;
  adds_place_ = kind == Notice::Kind::aborted;
  Notice notice{.kind = kind, .group = -1, .sequence = -1, .step = *step_};
  if (meeting && meeting->call) {
    notice.group = failed_group_ = meeting->group->number;
    notice.sequence = failed_sequence_ = meeting->sequence;
  }
  notice.set_text(text);
  for (const auto& group : groups_)
    post({.kind = Notice::Kind::ended,
          .group = group->number,
          .sequence = group->finished,
          .step = *step_},
         ranks_of(*group, group->others));
  for (Meeting* other : waiting_) other->woken.notify_one();
  post_and_wait(lock, notice, others_, 300ms);
}

void MpiWorld::dump_logs() {
  std::vector<std::shared_ptr<MpiGroup>> groups;
  {
    const Lock lock = enter();
    groups = groups_;
  }
  for (const auto& group : groups) group->log->dump();
}

}  // namespace zg::cpu

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/collective_log.h"
#include "zerograd/runtime/comm/mpi_wire.h"
#include "zerograd/runtime/comm/pace.h"
#include "zerograd/runtime/comm/process_id.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/comm/transport.h"

namespace zg::cpu {

using namespace std::chrono_literals;

inline constexpr auto watch_every = 20ms;  // for control messages, when nothing is queued
inline constexpr auto look_every = 50ms;   // whether peers are alive
inline constexpr auto grace =
    700ms;  // for the owner to see a failure; mpirun kills a second after one

inline constexpr auto pause = 500ms;  // longer than any scheduling delay between two checks

inline constexpr auto answered_within = 700ms;  // by a rank that is not stopped

inline constexpr int hello_tag = 1, notice_tag = 2,
                     data_tag = 3;  // the latter and a group's number

/// The identity of a rank, and the values that must be equal on all ranks. Sent as it lies in
/// memory.
struct Hello {
  ProcessId process;
  char same[8][40] = {};
  TransportEndpoint place;  ///< on an accelerator
};

/// A control message between ranks. Sent as it lies in memory, up to the end of the text.
struct Notice {
  enum class Kind : int64_t { founds, arrived, waits, left, ended, failed, aborted, asks, does };
  Kind kind{};
  int64_t group = 0;  ///< its number; for a new group a hash of members and name
  /// Where it arrived, waits or failed, or the last that it finished; the number of a question.
  int64_t sequence = 0;
  int64_t step = 0;
  int64_t count = 0;  ///< elements; of a new group: the number that is free; of an answer: ms
  int root = -1;      ///< broadcast only
  Collective op{};
  DType dtype{};
  char text[1000] = {};  ///< the tensor's or group's name, what failed, or what a rank does

  void set_text(const std::string& value) { std::snprintf(text, sizeof text, "%s", value.c_str()); }
  int64_t bytes() const {
    return static_cast<int64_t>(offsetof(Notice, text) + std::strlen(text) + 1);
  }
  Call call() const {
    return {.op = op, .dtype = dtype, .count = count, .name = text, .root = root};
  }
};

struct Peer {
  ProcessId process;
  bool visible = false;  ///< on this host, and seen alive at the start
  int misses = 0;        ///< times that it was not seen since
  Notice incoming;
  wire::Message receiving;
  int64_t step = 0;
  bool left = false;
  int64_t answered = 0;  ///< the last question that it answered,
  Activity activity;     ///< and how
};

/// A group of processes, as one member sees it. Guarded by the mutex of MpiWorld.
struct MpiGroup {
  struct Member {
    std::deque<Notice> arrivals;  ///< not yet met; a peer is at most one collective ahead
    int64_t waits_in = -1;        ///< the last collective for which it reported a wait
    int64_t ended_after = -1;     ///< once it failed: the last collective that it finished
    bool left = false;
  };
  int64_t number = 0;
  Members members;
  int own = 0;  ///< this rank, in the group
  std::vector<Member> each;
  std::vector<int> others;  ///< every member but this one
  std::shared_ptr<CollectiveLog> log;
  int64_t finished = -1;      ///< the last collective that is done here
  int64_t said_to_wait = -1;  ///< the last one for which this rank reported a wait
  std::chrono::steady_clock::time_point alive{};  ///< when its worker last waited for others
  bool fails = false;                             ///< its owner throws

  MpiGroup(int64_t number, Members all, int rank, int ranks);
  Member& at(int member) { return each[static_cast<size_t>(member)]; }
};

inline std::string difference(const std::string& what, int rank, const Hello& other,
                              const Hello& first) {
  return "ranks differ before step 0: the " + what + " of rank " + std::to_string(rank) + " (" +
         other.process.host + ") is not rank 0's (" + first.process.host +
         "); expected the same command, program and files on every host";
}

inline std::string gone(int rank, const Peer& peer) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(peer.process.pid) +
         ") is gone, last heard of in step " + std::to_string(peer.step) +
         ": it was killed or ended without a word";
}

/// A wait of a worker for other members of its group.
struct Meeting {
  using Clock = std::chrono::steady_clock;

  MpiGroup* group;
  int64_t sequence = -1;  // none: the rank computes, or what begins or ends is no collective
  const Call* call = nullptr;
  std::string place = "the end or the beginning of the run";  // where there is no call
  bool arriving = false;                                      // else it is under way
  bool carried = false;  // by accelerators, which do not report who is missing
  Clock::time_point began = Clock::now(), last = Clock::time_point::max();  // waits until then

  // until()'s own.
  std::function<bool(int member)> awaited;
  std::vector<int> missing;  // members that it waits for
  std::condition_variable woken;
  struct Question {
    int64_t number = 0;  // 0: none was asked
    Clock::time_point asked{};
  };
  Question first, second;
};

/// Shared by all groups of one process: the MPI connection to all other processes, their control
/// messages, the failure that ends all groups, and the activity of the rank's own thread. Among the
/// workers that wait, the one that came last calls MPI for all of them. It sleeps between its
/// calls.
class MpiWorld {
 public:
  using Clock = std::chrono::steady_clock;
  using Out = std::function<const std::byte*(int member)>;
  using In = std::function<std::byte*(int member)>;

  MpiWorld(const ProcessRank& place, const ProcessOptions& options);

  // The run's begin and end, by the same thread.
  /// Returns all ranks' hellos. Throws CommError, ConfigError.
  std::vector<Hello> connect(Hello own);
  bool is_up() const { return is_up_; }  ///< MPI has started
  void leave();  ///< every rank must call it; else peers report that this one left too early

  const std::shared_ptr<MpiGroup>& all() const { return all_; }
  /// Every member must call it, on the rank's own thread.
  std::shared_ptr<MpiGroup> found(Members members);
  /// `fails`: the rank's own thread throws, and the wait of its worker ends.
  void leave(const std::shared_ptr<MpiGroup>& group, bool fails) noexcept;

  /// Tells the other members of the call, and returns when all have arrived with the same call.
  void arrive(Meeting& meeting);
  /// Sends out(member) to and receives in(member) from every other member; null: nothing.
  void exchange(Meeting& meeting, int64_t bytes, int tag, const Out& out, const In& in);
  /// Returns when meeting.awaited() is false for every member. Throws CommError when that has
  /// become impossible. `yields`: how many checks it makes before it sleeps between checks.
  void until(Meeting& meeting, int64_t yields);
  void finished(MpiGroup& group, int64_t sequence);
  void watch();  ///< reads control messages while no collective runs

  void owner_waits(MpiGroup* group);  ///< null: it goes on
  void told() { told_ = true; }       ///< the rank's own thread knows of the failure
  bool is_told() const { return told_; }
  /// This rank's own thread failed: the workers tell the other ranks.
  void abort(const std::string& cause);
  /// Called by a worker that failed: tells the other ranks, and throws on this rank.
  [[noreturn]] void raise_own(const std::string& cause);
  void raise_failure_of_peer(const Meeting& meeting);
  void failed(const std::exception_ptr& error);
  void dump_logs();

  const std::shared_ptr<std::atomic<int64_t>>& step() const { return step_; }
  Clock::time_point deadline() const { return Clock::now() + patience(); }

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// A notice that is being sent to several ranks.
  struct Outgoing {
    Notice notice;
    std::vector<wire::Message> messages = {};
    bool awaited = false;
  };

  size_t at(int rank) const { return static_cast<size_t>(rank); }
  Clock::duration patience() const { return std::chrono::duration_cast<Clock::duration>(timeout_); }

  Lock enter();

  // Called with the mutex locked. A function that is given the lock may unlock it for a while.
  bool is_over(Meeting& meeting);
  void look_for_left(Lock& lock, const Meeting& meeting);
  void look_for_dead(Lock& lock, const Meeting& meeting, const std::vector<int>& ranks);
  void late(Lock& lock, Meeting& meeting, Clock::time_point now);
  void late_carried(Lock& lock, Meeting& meeting, Clock::time_point now);
  bool soon_killed(Clock::time_point now);
  Activity activity();  ///< the activity of this rank

  void receive(Peer& from);
  void take_notices();
  void take(int rank, const Notice& notice);
  bool take_in_group(int rank, const Notice& notice);
  /// Starts to send. Small messages complete at once, except to peers that no longer receive.
  Outgoing& post(const Notice& notice, const std::vector<int>& ranks);
  static bool is_sent(Outgoing& outgoing);
  /// The same, and waits up to `longest` until the messages are sent.
  void tell(Lock& lock, const Notice& notice, const std::vector<int>& ranks,
            Clock::duration longest);

  void raise_failure(const Meeting& meeting);
  [[noreturn]] void raise_own(Lock& lock, const std::string& cause);
  [[noreturn]] void fail(Lock& lock, const Meeting& meeting, const std::string& text);
  void announce(Lock& lock, Notice::Kind kind, const Meeting* meeting, const std::string& text);

  static std::vector<int> ranks_of(const MpiGroup& group, const std::vector<int>& members);
  std::string place_of(const Meeting& meeting) const;
  std::string activity_now(const Meeting& meeting) const;

  const int rank_, size_;
  const std::chrono::duration<double> timeout_;
  const std::function<bool()> told_to_end_;
  const std::shared_ptr<std::atomic<int64_t>> step_ = std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<bool> is_up_ = false, told_ = false;
  std::atomic<int> entering_ = 0;  // threads that the one which polls makes room for

  std::mutex owner_mutex_;  // the last one that is locked
  MpiGroup* owner_waits_in_ = nullptr;
  Clock::time_point owner_alive_ = Clock::now();

  std::mutex mutex_;
  bool serialized_ = false;
  std::vector<Peer> peers_;
  std::vector<int> others_;  // every rank but this one
  std::shared_ptr<MpiGroup> all_;
  std::vector<std::shared_ptr<MpiGroup>> groups_;
  int64_t next_number_ = 1;
  std::set<int64_t> ended_groups_;
  std::map<std::pair<int64_t, int>, std::deque<int64_t>> founding_;  // by hash and rank
  std::vector<std::pair<int, Notice>> early_;  // for groups that are not made yet
  std::list<Meeting*> waiting_;                // the last of them polls
  std::list<Outgoing> outgoing_;
  int64_t questions_ = 0;
  std::string last_;  // the collective that this rank was in
  std::string own_cause_;
  bool aborts_ = false;
  std::string cause_of_end_;
  bool adds_place_ = false;
  int64_t failed_group_ = -1, failed_sequence_ = -1;
  Clock::time_point told_at_{}, looked_{};
};

}  // namespace zg::cpu
